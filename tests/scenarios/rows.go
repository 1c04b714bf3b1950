package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// rows lists, below each other, the tests of each line: a word in a column says how the test
// ended there. The first row of a line also shows its cells without a test, and "-" where it
// needs none.
func (m *matrix) rows() [][]string {
	var rows [][]string
	for _, g := range m.catalog.groups {
		for _, l := range g.lines {
			tests := []string{"(no test)"}
			for i, p := range m.proofs[l.name] {
				if i == 0 {
					tests = nil
				}
				if !slices.Contains(tests, p.test) {
					tests = append(tests, p.test)
				}
			}
			for i, test := range tests {
				row := []string{l.name, test}
				if i > 0 {
					row[0] = ""
				}
				for _, column := range m.columns() {
					row = append(row, m.word(l, test, column, i == 0))
				}
				rows = append(rows, row)
			}
		}
	}
	return rows
}

func (m *matrix) word(l line, test, column string, first bool) string {
	for _, p := range m.proofs[l.name] {
		if p.test == test && p.column == column {
			return p.outcome.String()
		}
	}
	if !first {
		return ""
	}
	at := slices.IndexFunc(m.cells, func(c cell) bool { return c.line.name == l.name && c.column == column })
	if at < 0 {
		return "-"
	}
	if m.cells[at].state == hole {
		return "hole"
	}
	if _, known := m.outcome(l, column); known {
		return "" // a test further down tells
	}
	return "EMPTY"
}

// printRows aligns the columns.
func printRows(w io.Writer, rows [][]string) {
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, word := range row {
			widths[i] = max(widths[i], len(word))
		}
	}
	for _, row := range rows {
		var b strings.Builder
		for i, word := range row {
			fmt.Fprintf(&b, "%-*s  ", widths[i], word)
		}
		fmt.Fprintln(w, strings.TrimRight(b.String(), " "))
	}
}
