package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// events joins events of one run of Test/sub; a line without a brace is output of it.
func events(lines ...string) string {
	var b strings.Builder
	for _, line := range lines {
		if !strings.HasPrefix(line, "{") {
			line = `{"Action":"output","Test":"Test/sub","Output":"` + line + `\n"}`
		}
		b.WriteString(line + "\n")
	}
	return b.String()
}

const (
	started  = `{"Action":"run","Test":"Test"}` + "\n" + `{"Action":"run","Test":"Test/sub"}`
	pass     = `{"Action":"pass","Test":"Test/sub"}`
	fail     = `{"Action":"fail","Test":"Test/sub"}`
	skip     = `{"Action":"skip","Test":"Test/sub"}`
	complete = `{"Action":"output","Output":"FAIL\n"}`
	unbuilt  = `{"Action":"fail","Package":"p","FailedBuild":"p.test"}`
)

func TestJudge(t *testing.T) {
	t.Parallel()
	const (
		line  = `    store_test.go:5: boom`
		child = `{"Action":"output","Test":"Test/sub/case","Output":"        \tError Trace:\t/x/store.go:5\n"}`
		other = `{"Action":"output","Test":"Test","Output":"    store_test.go:5: boom\n"}`
	)
	tests := []struct {
		name               string
		events             string
		unmutated, mutated verdict
	}{
		{"assertion", events(started, line, fail, complete), failedUnmutated, killed},
		{"after other output", events(started, "no newline"+line, fail, complete), failedUnmutated, killed},
		{"testify in a subtest", events(started, child, fail, complete), failedUnmutated, killed},
		{"pass", events(started, pass), "", survived},
		{"skip", events(started, skip), skipped, skipped},
		{"build", unbuilt, failedUnmutated, notBuilt},
		{"nothing to run", events(`{"Action":"pass"}`), noSuchTest, notAsserted},
		{"no output", events(started, fail, complete), failedUnmutated, notAsserted},
		{"line of the parent", events(started, other, fail, complete), failedUnmutated, notAsserted},
		{"exit", events(started, line), failedUnmutated, notAsserted},
		{"panic", events(started, line, fail, "panic: boom"), failedUnmutated, notAsserted},
		{"timeout", events(started, line, "panic: test timed out after 1s", fail), failedUnmutated, notAsserted},
		{"race", events(started, line, "WARNING: DATA RACE", fail, complete), failedUnmutated, notAsserted},
		{"race, named by testing", events(started, "    testing.go:9: race detected during execution of test", fail, complete), failedUnmutated, notAsserted},
		{"words of testing", events(started, "    testing.go:9: TempDir RemoveAll cleanup", fail, complete), failedUnmutated, notAsserted},
		{"another test", events(started, `{"Action":"run","Test":"Test/other"}`, line, fail, complete), otherTests, otherTests},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			o, err := readOutcome(strings.NewReader(tt.events), "Test/sub")
			require.NoError(t, err)

			got, reason := judgeUnmutated(o)
			require.Equal(t, tt.unmutated, got, reason)

			got, reason = judgeMutated(o)
			require.Equal(t, tt.mutated, got, reason)
			if got != killed {
				require.NotEmpty(t, reason)
			}
		})
	}
}

func TestReadOutcome_KeepsWordsOfTheGoCommand(t *testing.T) {
	t.Parallel()

	o, err := readOutcome(strings.NewReader("go: no such package\n"+events(started)), "Test/sub")

	require.NoError(t, err)
	require.True(t, o.started)
	require.Contains(t, o.output, "go: no such package\n")
}

func TestTail(t *testing.T) {
	t.Parallel()

	require.Equal(t, []string{"b", "c"}, tail("a\nb\nc\n", 2))
	require.Equal(t, []string{"a"}, tail("a", 2))
	require.Empty(t, tail("\n", 2))
}
