package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// fixture is a module with two protections, one of them in an embedded file.
var fixture = map[string]string{
	"go.mod": "module fixture\n\ngo 1.24\n",
	"limit":  "on\n",
	"guard.go": `package fixture

import _ "embed"

//go:embed limit
var limit string

func allowed(n int) bool {
	if n < 0 {
		return false
	}
	return n < 10 || limit != "on\n"
}
`,
	"guard_test.go": `package fixture

import "testing"

func TestGuard(t *testing.T) {
	t.Run("TestA1_Negative", func(t *testing.T) {
		if allowed(-1) {
			t.Error("a negative number is allowed")
		}
	})
	t.Run("TestA2_Limit", func(t *testing.T) {
		if allowed(10) {
			t.Error("no limit")
		}
	})
}

func TestPanic(t *testing.T) {
	if allowed(-1) {
		t.Error("a negative number is allowed")
		panic("allowed")
	}
}

func TestSkip(t *testing.T) { t.Skip("no server") }

func TestRed(t *testing.T) { t.Error("red") }
`,
}

func TestRunner_TestAll(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	for file, text := range fixture {
		require.NoError(t, os.WriteFile(filepath.Join(root, file), []byte(text), 0o600))
	}
	negative := edit{file: "guard.go", old: []string{"\tif n < 0 {"}, new: []string{"\tif false {"}}
	unlimited := edit{file: "limit", old: []string{"on"}, new: []string{"off"}}
	broken := edit{file: "guard.go", old: []string{"\t\treturn false"}, new: []string{"\t\treturn 0"}}
	stale := edit{file: "guard.go", old: []string{"\tif n <= 0 {"}}
	gone := edit{file: "gone.go", old: []string{"x"}}
	tests := []struct {
		test    string
		edit    edit
		verdict verdict
	}{
		{"TestGuard/TestA1_Negative", negative, killed},
		{"TestGuard/TestA2_Limit", unlimited, killed},
		{"TestGuard/TestA2_Limit", negative, survived},
		{"TestGuard/TestA2_Limit", broken, notBuilt},
		{"TestGuard/TestA2_Limit", stale, notApplied},
		{"TestGuard/TestA2_Limit", gone, notApplied},
		{"TestGuard/TestA2", negative, noSuchTest},
		{"TestPanic", negative, notAsserted},
		{"TestSkip", negative, skipped},
		{"TestRed", negative, failedUnmutated},
	}
	var mutants []mutant
	for _, tt := range tests {
		mutants = append(mutants, mutant{pkg: ".", test: tt.test, edits: []edit{tt.edit}})
	}

	var log bytes.Buffer
	r := &runner{root: root, timeout: time.Minute, log: &log}
	i := 0
	for report := range r.testAll(context.Background(), mutants, 2) {
		require.Equal(t, tests[i].verdict, report.verdict, "mutant %d: %s\n%s", i, report.reason, report.output)
		require.Equal(t, tests[i].test, report.mutant.test)
		i++
	}

	require.Equal(t, len(tests), i)
	require.Equal(t, 11, bytes.Count(log.Bytes(), []byte("(overlay ")), "six tests as they are, once each, and five mutations:\n%s", &log)
	for file, text := range fixture {
		now, err := os.ReadFile(filepath.Join(root, file))
		require.NoError(t, err)
		require.Equal(t, text, string(now), "the tree was touched")
	}
}

func TestRunner_StopsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	root := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(root, "a.go"), []byte("a\n"), 0o600))
	m := mutant{pkg: ".", test: "TestX", edits: []edit{{file: "a.go", old: []string{"a"}}}}

	r := &runner{root: root, timeout: time.Minute}
	for report := range r.testAll(ctx, []mutant{m, m, m}, 1) {
		require.Equal(t, notRun, report.verdict)
		require.Equal(t, "context canceled", report.reason)
	}
}
