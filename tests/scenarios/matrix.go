package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// state of a cell.
type state int

const (
	empty state = iota
	filled
	hole
)

// cell is a line that has to be proved in a column.
type cell struct {
	line   line
	column string
	state  state
	reason string // of a cell that is not filled
}

// matrix holds the cells of a catalog against the proofs.
type matrix struct {
	catalog *catalog
	proofs  map[string][]proof // by line
	cells   []cell
	notes   []string // proofs that the catalog does not expect
}

func newMatrix(c *catalog, proofs []proof) *matrix {
	m := &matrix{catalog: c, proofs: map[string][]proof{}}
	for _, p := range proofs {
		m.proofs[p.line] = append(m.proofs[p.line], p)
		l := c.line(p.line)
		switch {
		case l != nil && l.holes[p.column] != "" && p.outcome == pass:
			m.notes = append(m.notes, fmt.Sprintf("%s on %s is declared a hole, but %s passed", p.line, p.column, p.test))
		case l == nil && slices.ContainsFunc(c.groups, func(g group) bool { return g.name == p.line[:1] }):
			m.notes = append(m.notes, fmt.Sprintf("%s names line %s, which is not in the table", p.test, p.line))
		}
	}
	for _, g := range c.groups {
		for _, l := range g.lines {
			for _, column := range m.required(l) {
				m.cells = append(m.cells, m.cell(l, column))
			}
		}
	}
	return m
}

// columns lists all that can be printed, the one without a database first.
func (m *matrix) columns() []string {
	return append([]string{anyColumn}, m.catalog.required()...)
}

// required lists the columns in which the line has a cell: those it demands, and every one
// in which a test of it failed.
func (m *matrix) required(l line) []string {
	demanded := l.columns
	if demanded == nil {
		demanded = m.catalog.required()
	}
	if l.any {
		_, alone := m.outcome(l, anyColumn)
		databases := slices.ContainsFunc(demanded, func(column string) bool {
			_, known := m.outcome(l, column)
			return known
		})
		if alone || !databases {
			demanded = []string{anyColumn}
		}
	}
	var columns []string
	for _, column := range m.columns() {
		worst, known := m.outcome(l, column)
		if slices.Contains(demanded, column) || known && worst == fail {
			columns = append(columns, column)
		}
	}
	return columns
}

// outcome sums the line's tests in a column up: one failure spoils them, one pass is enough.
func (m *matrix) outcome(l line, column string) (sum outcome, known bool) {
	for _, p := range m.proofs[l.name] {
		if p.column == column {
			sum, known = max(sum, p.outcome), true
		}
	}
	return sum, known
}

func (m *matrix) cell(l line, column string) cell {
	c := cell{line: l, column: column}
	sum, known := m.outcome(l, column)
	reason, declared := l.holes[column]
	switch {
	case declared && !(known && sum == fail):
		c.state, c.reason = hole, reason
	case !known:
		c.reason = "no test"
	case sum == pass:
		c.state = filled
	default:
		var reasons []string
		for _, p := range m.proofs[l.name] {
			switch {
			case p.column != column || p.outcome != sum:
			case sum == fail:
				reasons = append(reasons, p.test+" failed")
			case p.reason == "":
				reasons = append(reasons, p.test+" was skipped")
			default:
				reasons = append(reasons, p.test+" was skipped: "+p.reason)
			}
		}
		c.reason = strings.Join(reasons, "; ")
	}
	return c
}

func (m *matrix) count(s state) int {
	n := 0
	for _, c := range m.cells {
		if c.state == s {
			n++
		}
	}
	return n
}

func (m *matrix) empty() int {
	return m.count(empty)
}

// print writes one row for each line and test, then what is empty and why, then the sums.
func (m *matrix) print(w io.Writer) {
	printRows(w, append([][]string{append([]string{"line", "test"}, m.columns()...)}, m.rows()...))
	fmt.Fprintln(w)
	for i := 0; i < len(m.cells); {
		c, columns := m.cells[i], []string{m.cells[i].column}
		for i++; i < len(m.cells) && m.cells[i].line.name == c.line.name && m.cells[i].reason == c.reason; i++ {
			columns = append(columns, m.cells[i].column)
		}
		if c.state == empty {
			fmt.Fprintf(w, "empty: %s (%s) on %s: %s\n", c.line.name, c.line.text, strings.Join(columns, ", "), c.reason)
		}
	}
	for _, note := range m.notes {
		fmt.Fprintf(w, "note: %s\n", note)
	}
	fmt.Fprintf(w, "%d cells, %d filled, %d declared holes, %d empty\n",
		len(m.cells), m.count(filled), m.count(hole), m.count(empty))
}
