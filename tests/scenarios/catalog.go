package main

import (
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
)

// anyColumn holds tests that run without a database.
const anyColumn = "any"

// catalog is what has to be proved: scenarios.txt.
type catalog struct {
	columns []column
	groups  []group
}

// column is a database through one driver. Results of a planned one are ignored.
type column struct {
	name, text string
	planned    bool
}

type group struct {
	name, text string
	lines      []line
}

// line is one scenario.
type line struct {
	name, text string
	columns    []string          // where it has to be proved; nil for every column
	any        bool              // one proof without a database is enough
	holes      map[string]string // column to reason
}

var (
	lineForm  = regexp.MustCompile(`^[A-I]\d+$`)
	groupForm = regexp.MustCompile(`^[A-I]$`)
)

// parse reads a catalog; the head of scenarios.txt explains the format.
func parse(file, text string) (*catalog, error) {
	c := &catalog{}
	number := 0
	for row := range strings.Lines(text) {
		number++
		row = strings.TrimSpace(row)
		if row == "" || row[0] == '#' {
			continue
		}
		word, rest := cutWord(row)
		name, about := cutWord(rest)
		var err error
		switch {
		case word == "column" || word == "planned":
			if name == "" || c.column(name) || name == anyColumn {
				err = fmt.Errorf("column %q: want a new name", name)
			}
			c.columns = append(c.columns, column{name: name, text: about, planned: word == "planned"})
		case word == "group":
			if !groupForm.MatchString(name) {
				err = fmt.Errorf("group %q: want a letter from A to I", name)
			}
			c.groups = append(c.groups, group{name: name, text: about})
		case word == "hole":
			err = c.addHole(name, about)
		case lineForm.MatchString(word):
			err = c.addLine(word, rest)
		default:
			err = fmt.Errorf("%q is neither column, planned, group, hole nor a line", word)
		}
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", file, number, err)
		}
	}
	return c, nil
}

func (c *catalog) addLine(name, rest string) error {
	if len(c.groups) == 0 || c.groups[len(c.groups)-1].name != name[:1] {
		return fmt.Errorf("line %s stands outside of its group", name)
	}
	if c.line(name) != nil {
		return fmt.Errorf("line %s a second time", name)
	}
	l := line{name: name, text: rest, holes: map[string]string{}}
	if inner, ok := strings.CutPrefix(rest, "("); ok {
		words, text, closed := strings.Cut(inner, ")")
		if !closed {
			return fmt.Errorf("line %s: no closing parenthesis", name)
		}
		l.text = strings.TrimSpace(text)
		if words == anyColumn {
			l.any = true
		} else {
			l.columns = strings.Fields(words)
		}
		for _, wanted := range l.columns {
			if !c.column(wanted) {
				return fmt.Errorf("line %s: unknown column %q", name, wanted)
			}
		}
	}
	if l.text == "" {
		return fmt.Errorf("line %s has no text", name)
	}
	last := &c.groups[len(c.groups)-1]
	last.lines = append(last.lines, l)
	return nil
}

func (c *catalog) addHole(name, reason string) error {
	if len(c.groups) == 0 || len(c.groups[len(c.groups)-1].lines) == 0 {
		return fmt.Errorf("hole %s stands below no line", name)
	}
	lines := c.groups[len(c.groups)-1].lines
	l := &lines[len(lines)-1]
	switch {
	case !c.column(name):
		return fmt.Errorf("hole of %s: unknown column %q", l.name, name)
	case l.holes[name] != "":
		return fmt.Errorf("hole of %s: %s a second time", l.name, name)
	case l.columns != nil && !slices.Contains(l.columns, name):
		return fmt.Errorf("hole of %s: the line has no cell in %s", l.name, name)
	case reason == "":
		return fmt.Errorf("hole of %s in %s: no reason", l.name, name)
	}
	l.holes[name] = reason
	return nil
}

func (c *catalog) column(name string) bool {
	return slices.ContainsFunc(c.columns, func(col column) bool { return col.name == name })
}

// required lists the columns which need no plan any more.
func (c *catalog) required() []string {
	var names []string
	for _, col := range c.columns {
		if !col.planned {
			names = append(names, col.name)
		}
	}
	return names
}

func (c *catalog) line(name string) *line {
	for _, g := range c.groups {
		for i := range g.lines {
			if g.lines[i].name == name {
				return &g.lines[i]
			}
		}
	}
	return nil
}

// keep drops every group but the named ones.
func (c *catalog) keep(names []string) error {
	for _, name := range names {
		if !slices.ContainsFunc(c.groups, func(g group) bool { return g.name == name }) {
			return fmt.Errorf("group %q is not in the table", name)
		}
	}
	c.groups = slices.DeleteFunc(c.groups, func(g group) bool { return !slices.Contains(names, g.name) })
	return nil
}

func (c *catalog) print(w io.Writer) {
	for _, col := range c.columns {
		kind := "column"
		if col.planned {
			kind = "planned"
		}
		fmt.Fprintf(w, "%-7s  %-8s  %s\n", kind, col.name, col.text)
	}
	for _, g := range c.groups {
		fmt.Fprintf(w, "\n%s  %s\n", g.name, g.text)
		for _, l := range g.lines {
			text := l.text
			switch {
			case l.any:
				text += " (one test without a database is enough)"
			case l.columns != nil:
				text += " (" + strings.Join(l.columns, ", ") + " only)"
			}
			fmt.Fprintf(w, "  %-4s %s\n", l.name, text)
			for _, col := range c.columns {
				if reason := l.holes[col.name]; reason != "" {
					fmt.Fprintf(w, "       hole on %s: %s\n", col.name, reason)
				}
			}
		}
	}
}

func cutWord(s string) (word, rest string) {
	word, rest, _ = strings.Cut(strings.TrimSpace(s), " ")
	return word, strings.TrimSpace(rest)
}
