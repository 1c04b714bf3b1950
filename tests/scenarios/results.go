package main

import (
	"bufio"
	"encoding/json"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// event is a line of go test -json, see go doc test2json.
type event struct {
	Action  string
	Package string
	Test    string
	Output  string
}

// outcome of a test. Of several runs of one test the greatest counts: a pass makes a skip
// good, nothing makes a failure good.
type outcome int

const (
	skip outcome = iota
	pass
	fail
)

func (o outcome) String() string {
	return [...]string{"skip", "pass", "FAIL"}[o]
}

// testID is a test, or a subtest by its whole path.
type testID struct {
	pkg, path string
}

// result is what became of a test in all the runs that were read.
type result struct {
	outcome outcome
	reason  string // the last line it logged in a run that skipped it
}

type results map[testID]result

var logLine = regexp.MustCompile(`^ {4}[^\s/:]+\.go:\d+: (.*)`)

// read adds the tests of one run and returns their number. A test that began and never
// ended has failed.
func (r results) read(from io.Reader) (int, error) {
	ended := map[testID]outcome{}
	logged := map[testID]string{}
	lines := bufio.NewReader(from)
	for {
		text, readErr := lines.ReadBytes('\n')
		var ev event
		// What is no event is the go command's own word, such as a download.
		if json.Unmarshal(text, &ev) == nil && ev.Test != "" {
			id := testID{ev.Package, ev.Test}
			switch ev.Action {
			case "run":
				ended[id] = fail
			case "pass":
				ended[id] = pass
			case "skip":
				ended[id] = skip
			case "fail":
				ended[id] = fail
			case "output":
				if found := logLine.FindStringSubmatch(ev.Output); found != nil {
					logged[id] = found[1]
				}
			}
		}
		if readErr == io.EOF {
			break
		}
		if readErr != nil {
			return 0, readErr
		}
	}
	for id, now := range ended {
		known := r[id]
		if now == skip {
			known.reason = logged[id]
		}
		known.outcome = max(known.outcome, now)
		r[id] = known
	}
	return len(ended), nil
}

// proof is what one named test says about one cell.
type proof struct {
	line, column, test string
	outcome            outcome
	reason             string
}

// linesForm finds the lines in an element of a test's path.
var linesForm = regexp.MustCompile(`^Test((?:[A-I]\d+_)+)`)

// proofs sums the tests up by line, column and the path element that carries the line, in
// the order of these. Tests of planned columns are left out.
//
// Only tests without subtests are counted: a parent passes although all that is below it
// was skipped. But a parent that failed while no subtest did fails all that is below it:
// what it checked afterwards counts too.
func (r results) proofs(c *catalog) []proof {
	parents := map[testID]bool{}
	blameless := map[testID]bool{} // parents that may have failed only because a subtest did
	for id, got := range r {
		if up, ok := id.parent(); ok {
			parents[up] = true
			blameless[up] = blameless[up] || got.outcome == fail
		}
	}

	sums := map[[3]string]proof{}
	for id, got := range r {
		if parents[id] {
			continue
		}
		for up, ok := id.parent(); ok; up, ok = up.parent() {
			if r[up].outcome == fail && !blameless[up] {
				got.outcome = fail
			}
		}
		col := id.column(c)
		if col == "" {
			continue
		}
		for _, element := range strings.Split(id.path, "/") {
			found := linesForm.FindStringSubmatch(element)
			if found == nil {
				continue
			}
			for _, name := range strings.Split(strings.TrimSuffix(found[1], "_"), "_") {
				key := [3]string{name, col, element}
				sum := proof{line: name, column: col, test: element, outcome: got.outcome, reason: got.reason}
				if other, known := sums[key]; known && worse(other.outcome, sum.outcome) {
					sum = other
				}
				sums[key] = sum
			}
		}
	}
	return slices.SortedFunc(maps.Values(sums), func(a, b proof) int {
		return strings.Compare(a.line+"\x00"+a.test+"\x00"+a.column, b.line+"\x00"+b.test+"\x00"+b.column)
	})
}

// worse orders what is below one test: a part that was skipped leaves the whole unproved.
func worse(a, b outcome) bool {
	return a == fail || a == skip && b == pass
}

// column returns the database in the test's path, "any" if there is none, and nothing for
// a database that is only planned.
func (id testID) column(c *catalog) string {
	for _, element := range strings.Split(id.path, "/") {
		for _, col := range c.columns {
			switch {
			case col.name != element:
			case col.planned:
				return ""
			default:
				return col.name
			}
		}
	}
	return anyColumn
}

func (id testID) parent() (testID, bool) {
	at := strings.LastIndexByte(id.path, '/')
	if at < 0 {
		return testID{}, false
	}
	return testID{id.pkg, id.path[:at]}, true
}
