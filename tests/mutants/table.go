package main

import (
	"fmt"
	"io"
	"strings"
)

// tailLines is how much of a test's output stands below a mutant that was not killed.
const tailLines = 15

// table prints one aligned row a mutant, each as soon as its report is there.
type table struct {
	w                      io.Writer
	mutants                []mutant
	name, scenarios, tests int // widths
}

func newTable(w io.Writer, mutants []mutant) *table {
	t := &table{w: w, mutants: mutants, name: len("mutant"), scenarios: len("scenario"), tests: len("test")}
	for _, m := range mutants {
		t.name = max(t.name, len(m.name))
		t.scenarios = max(t.scenarios, len(m.lines()))
		t.tests = max(t.tests, len(m.test))
	}
	return t
}

func (m mutant) lines() string {
	if len(m.scenarios) == 0 {
		return "-"
	}
	return strings.Join(m.scenarios, ", ")
}

func (t *table) print(name, scenarios, test, rest string) {
	fmt.Fprintf(t.w, "%-*s  %-*s  %-*s  %s\n", t.name, name, t.scenarios, scenarios, t.tests, test, rest)
}

func (t *table) list() {
	t.print("mutant", "scenario", "test", "package")
	for _, m := range t.mutants {
		t.print(m.name, m.lines(), m.test, m.pkg)
	}
}

func (t *table) head() {
	t.print("mutant", "scenario", "test", fmt.Sprintf("%-*s  seconds", len(failedUnmutated), "verdict"))
}

func (t *table) row(r report) {
	t.print(r.mutant.name, r.mutant.lines(), r.mutant.test,
		fmt.Sprintf("%-*s  %7.1f", len(failedUnmutated), r.verdict, r.elapsed.Seconds()))
	if r.verdict == killed {
		return
	}
	fmt.Fprintf(t.w, "    %s: %s\n", r.mutant.where, r.reason)
	for _, line := range tail(r.output, tailLines) {
		fmt.Fprintf(t.w, "    | %s\n", line)
	}
}

func tail(output string, n int) []string {
	output = strings.TrimRight(output, "\n")
	if output == "" {
		return nil
	}
	lines := strings.Split(output, "\n")
	return lines[max(0, len(lines)-n):]
}
