package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// mutant is one protection taken out, and the test which must notice.
type mutant struct {
	name      string
	scenarios []string // lines such as A2; none for a protection outside of the scenarios
	pkg       string   // one package, as go test takes it
	test      string   // full name of one test or subtest
	env       []string
	args      []string // put after the package
	edits     []edit
	where     string // file:line of its description
}

// edit replaces whole lines of one file.
type edit struct {
	file     string // relative to the module's root, with slashes
	old, new []string
}

var (
	nameForm     = regexp.MustCompile(`^[a-z0-9]+(-[a-z0-9]+)*$`)
	scenarioForm = regexp.MustCompile(`^[A-I]\d+$`)
	testForm     = regexp.MustCompile(`^Test[^\s/]*(/[^\s/]+)*$`)
	envForm      = regexp.MustCompile(`^\w+=`)
)

// load reads the mutants of every *.txt file of dir, in the order of the files' names.
func load(dir string) ([]mutant, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.txt"))
	if err != nil {
		return nil, err
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("no *.txt file in %s: run the command in the module's root", dir)
	}
	var all []mutant
	known := map[string]string{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		mutants, err := parse(file, string(text))
		if err != nil {
			return nil, err
		}
		for _, m := range mutants {
			if first, taken := known[m.name]; taken {
				return nil, fmt.Errorf("%s: mutant %s is described at %s too", m.where, m.name, first)
			}
			known[m.name] = m.where
		}
		all = append(all, mutants...)
	}
	return all, nil
}

// validate reports what is missing or malformed.
func (m mutant) validate() error {
	fail := func(format string, args ...any) error {
		return fmt.Errorf("%s: mutant %s: %s", m.where, m.name, fmt.Sprintf(format, args...))
	}
	switch {
	case !nameForm.MatchString(m.name):
		return fail("name %q: want lower-case words joined by hyphens", m.name)
	case m.pkg == "" || strings.Contains(m.pkg, "...") || strings.ContainsAny(m.pkg, " \t"):
		return fail("package %q: want exactly one", m.pkg)
	case !testForm.MatchString(m.test):
		return fail("test %q: want the full name of one test, such as TestStore/sqlite/TestA1_Retry", m.test)
	case len(m.edits) == 0:
		return fail("no edit")
	}
	for _, line := range m.scenarios {
		if !scenarioForm.MatchString(line) {
			return fail("scenario %q: want a line such as A2", line)
		}
	}
	for _, setting := range m.env {
		if !envForm.MatchString(setting) {
			return fail("env %q: want NAME=value", setting)
		}
	}
	for _, e := range m.edits {
		switch {
		case !filepath.IsLocal(filepath.FromSlash(e.file)):
			return fail("edit %q: want a file of this module", e.file)
		case len(e.old) == 0:
			return fail("edit %s: no old line", e.file)
		case slices.Equal(e.old, e.new):
			return fail("edit %s: changes nothing", e.file)
		}
	}
	return nil
}

// inScenarios tells whether the mutant belongs to one of the groups or lines, which are
// joined by commas. Every mutant belongs to the empty filter.
func (m mutant) inScenarios(filter string) bool {
	if filter == "" {
		return true
	}
	for wanted := range strings.SplitSeq(filter, ",") {
		wanted = strings.TrimSpace(wanted)
		for _, line := range m.scenarios {
			if line == wanted || line[:1] == wanted {
				return true
			}
		}
	}
	return false
}

// runExpression matches the named test and no other one.
func (m mutant) runExpression() string {
	elements := strings.Split(m.test, "/")
	for i, element := range elements {
		elements[i] = "^" + regexp.QuoteMeta(element) + "$"
	}
	return strings.Join(elements, "/")
}
