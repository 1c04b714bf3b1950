package main

import (
	"fmt"
	"strings"
)

// parse reads the descriptions of one file; mutants.txt explains the format.
func parse(file, text string) ([]mutant, error) {
	var (
		mutants []mutant
		m       *mutant         // the one being read
		e       *edit           // the edit being read
		seen    map[string]bool // keys of m
	)
	number := 0
	for line := range strings.Lines(text) {
		number++
		line = strings.TrimRight(line, "\r\n")
		where := fmt.Sprintf("%s:%d", file, number)

		switch {
		case strings.TrimSpace(line) == "" && line != " ":
			e = nil
			continue
		case line[0] == '#':
			continue
		case strings.ContainsRune("-+ ", rune(line[0])):
			if e == nil {
				return nil, fmt.Errorf("%s: a line of code outside of an edit", where)
			}
			if line[0] != '+' {
				e.old = append(e.old, line[1:])
			}
			if line[0] != '-' {
				e.new = append(e.new, line[1:])
			}
			continue
		}

		key, value, found := strings.Cut(line, ":")
		value = strings.TrimSpace(value)
		if !found || value == "" {
			return nil, fmt.Errorf("%s: want \"key: value\", got %q", where, line)
		}
		e = nil
		if key == "mutant" {
			mutants = append(mutants, mutant{name: value, where: where})
			m, seen = &mutants[len(mutants)-1], map[string]bool{}
			continue
		}
		if m == nil {
			return nil, fmt.Errorf("%s: %s before the first mutant", where, key)
		}
		if seen[key] && key != "edit" {
			return nil, fmt.Errorf("%s: %s a second time", where, key)
		}
		seen[key] = true
		switch key {
		case "scenarios":
			m.scenarios = strings.Fields(strings.ReplaceAll(value, ",", " "))
		case "package":
			m.pkg = value
		case "test":
			m.test = value
		case "env":
			m.env = strings.Fields(value)
		case "args":
			m.args = strings.Fields(value)
		case "edit":
			m.edits = append(m.edits, edit{file: value})
			e = &m.edits[len(m.edits)-1]
		default:
			return nil, fmt.Errorf("%s: unknown key %q", where, key)
		}
	}
	for _, m := range mutants {
		if err := m.validate(); err != nil {
			return nil, err
		}
	}
	return mutants, nil
}
