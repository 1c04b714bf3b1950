package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// stream makes the output of a test run: each word is "path action" or "path: output".
func stream(t *testing.T, words ...string) *strings.Reader {
	t.Helper()
	var b strings.Builder
	for _, word := range words {
		ev := event{Action: "output", Package: "p"}
		if path, output, ok := strings.Cut(word, ": "); ok {
			ev.Test, ev.Output = path, output+"\n"
		} else {
			ev.Test, ev.Action, _ = strings.Cut(word, " ")
		}
		line, err := json.Marshal(ev)
		require.NoError(t, err)
		b.Write(append(line, '\n'))
	}
	return strings.NewReader(b.String())
}

func read(t *testing.T, runs ...*strings.Reader) results {
	t.Helper()
	r := results{}
	for _, run := range runs {
		_, err := r.read(run)
		require.NoError(t, err)
	}
	return r
}

func smallCatalog(t *testing.T) *catalog {
	t.Helper()
	c, err := parse("f", small)
	require.NoError(t, err)
	return c
}

func TestResults_Proofs(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		run    []string
		proofs []proof
	}{
		{
			"a database in the path, a sibling that fails",
			[]string{"TestStore/pgx/TestA1_X pass", "TestStore/pgx/TestA2_Y fail", "TestStore/pgx fail", "TestStore fail"},
			[]proof{{"A1", "pgx", "TestA1_X", pass, ""}, {"A2", "pgx", "TestA2_Y", fail, ""}},
		},
		{
			"the line above the database",
			[]string{"TestA1_X/pgx/start pass", "TestA1_X/sqlite/start fail", "TestA1_X/pgx pass", "TestA1_X/sqlite fail", "TestA1_X fail"},
			[]proof{{"A1", "pgx", "TestA1_X", pass, ""}, {"A1", "sqlite", "TestA1_X", fail, ""}},
		},
		{
			"several lines, no database",
			[]string{"TestA1_A9_X pass"},
			[]proof{{"A1", "any", "TestA1_A9_X", pass, ""}, {"A9", "any", "TestA1_A9_X", pass, ""}},
		},
		{
			"one part skipped, the whole passed",
			[]string{"TestA1_X/pgx/1 pass", "TestA1_X/pgx/2:     a_test.go:7: too slow", "TestA1_X/pgx/2 skip", "TestA1_X/pgx/3 pass", "TestA1_X/pgx pass", "TestA1_X pass"},
			[]proof{{"A1", "pgx", "TestA1_X", skip, "too slow"}},
		},
		{
			"never ended",
			[]string{"TestA1_X run", "TestA1_X/pgx run", "TestA1_X/sqlite run", "TestA1_X/sqlite pass"},
			[]proof{{"A1", "pgx", "TestA1_X", fail, ""}, {"A1", "sqlite", "TestA1_X", pass, ""}},
		},
		{
			"the parent's own check fails",
			[]string{"TestStore/pgx/TestA1_X pass", "TestStore/pgx fail", "TestStore fail"},
			[]proof{{"A1", "pgx", "TestA1_X", fail, ""}},
		},
		{
			"a planned database, no line",
			[]string{"TestStore/mariadb/TestA1_X pass", "TestA1 pass", "TestOther pass", "TestZ1_X pass"},
			nil,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, tt.proofs, read(t, stream(t, tt.run...)).proofs(smallCatalog(t)))
		})
	}
}

func TestResults_ReadSeveralRuns(t *testing.T) {
	t.Parallel()
	skipped := func() *strings.Reader { return stream(t, "TestA1_X skip") }
	passed := func() *strings.Reader { return stream(t, "TestA1_X pass") }
	failed := func() *strings.Reader { return stream(t, "TestA1_X fail") }
	id := testID{"p", "TestA1_X"}

	require.Equal(t, skip, read(t, skipped())[id].outcome)
	require.Equal(t, pass, read(t, passed(), skipped())[id].outcome)
	require.Equal(t, fail, read(t, failed(), passed())[id].outcome)
}

func TestResults_ReadSkipsOtherWords(t *testing.T) {
	t.Parallel()
	r := results{}

	n, err := r.read(strings.NewReader("go: downloading x\n{\"Action\":\"start\",\"Package\":\"p\"}\n"))

	require.NoError(t, err)
	require.Zero(t, n)
}
