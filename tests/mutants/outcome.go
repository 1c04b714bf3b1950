package main

import (
	"bufio"
	"encoding/json"
	"io"
	"regexp"
	"strings"
)

// event is a line of go test -json, see go doc test2json.
type event struct {
	Action      string
	Test        string
	Output      string
	FailedBuild string
}

// outcome is what one run of one named test showed.
type outcome struct {
	started  bool     // the test began
	result   string   // "pass", "fail", "skip"; empty if it never ended
	unbuilt  bool     // the test binary could not be built
	complete bool     // the test binary went on to its own end: no panic, no exit, no timeout
	race     bool     // the race detector spoke
	asserted bool     // the test, or a subtest of it, printed a failed assertion
	others   []string // tests that ran although nobody named them
	output   string
}

// A failed testify assertion, or a line of t.Error or t.Fatal. The testing package prints
// those of t.Log in the same form, so a bare t.Fail after a t.Log is taken for an assertion.
var (
	errorTrace = regexp.MustCompile(`^\s+Error Trace:\t`)
	errorLine  = regexp.MustCompile(` {4}([^\s/:]+\.go):\d+: `)
)

// readOutcome reads the events of a run in which only the named test was asked for.
func readOutcome(r io.Reader, test string) (outcome, error) {
	var (
		o      outcome
		output strings.Builder
	)
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			var ev event
			if json.Unmarshal(line, &ev) != nil {
				ev = event{Action: "output", Output: string(line)} // the go command's own words
			}
			output.WriteString(ev.Output)
			o.add(ev, test)
		}
		if err != nil {
			o.output = output.String()
			if err == io.EOF {
				return o, nil
			}
			return o, err
		}
	}
}

func (o *outcome) add(ev event, test string) {
	own := ev.Test == test || strings.HasPrefix(ev.Test, test+"/")
	switch ev.Action {
	case "build-fail":
		o.unbuilt = true
	case "run":
		if ev.Test == test {
			o.started = true
		}
		if !own && !strings.HasPrefix(test, ev.Test+"/") {
			o.others = append(o.others, ev.Test)
		}
	case "pass", "fail", "skip":
		if ev.Test == test {
			o.result = ev.Action
		}
		if ev.FailedBuild != "" {
			o.unbuilt = true
		}
	case "output":
		// The testing package ends a failed run with this line; a test binary that
		// panics, exits or is stopped for its time never gets there.
		if ev.Test == "" && strings.HasSuffix(ev.Output, "FAIL\n") {
			o.complete = true
		}
		if strings.Contains(ev.Output, "WARNING: DATA RACE") || strings.Contains(ev.Output, "race detected during execution of test") {
			o.race = true
		}
		if own && isAssertion(ev.Output) {
			o.asserted = true
		}
	}
}

func isAssertion(line string) bool {
	if errorTrace.MatchString(line) {
		return true
	}
	found := errorLine.FindStringSubmatch(line)
	// testing.go itself speaks of races, Goexit and folders that cannot be removed.
	return found != nil && found[1] != "testing.go"
}
