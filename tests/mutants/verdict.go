package main

import (
	"strings"
	"time"
)

// verdict is what became of a mutant.
type verdict string

const (
	killed          verdict = "killed"
	survived        verdict = "SURVIVED"
	notApplied      verdict = "does not apply"
	notBuilt        verdict = "does not build"
	failedUnmutated verdict = "failed without mutation"
	noSuchTest      verdict = "no such test"
	notAsserted     verdict = "not by an assertion"
	otherTests      verdict = "other tests ran"
	skipped         verdict = "skipped"
	notRun          verdict = "not run"
)

// report is a verdict, and for every one but killed the reason and the output.
type report struct {
	mutant  mutant
	verdict verdict
	reason  string
	output  string
	elapsed time.Duration
}

// judgeUnmutated finds what is wrong with the test itself; an empty verdict says: nothing,
// its failure under the mutation would count.
func judgeUnmutated(o outcome) (verdict, string) {
	switch {
	case o.unbuilt:
		return failedUnmutated, "its package does not build"
	case !o.started:
		return noSuchTest, "no test of that name ran"
	case len(o.others) > 0:
		return otherTests, "ran too: " + strings.Join(o.others, ", ")
	case o.result == "skip":
		return skipped, "the test skips itself"
	case o.result != "pass":
		return failedUnmutated, "the test fails on the library as it is"
	}
	return "", ""
}

// judgeMutated decides about a mutant whose test passes without the mutation.
func judgeMutated(o outcome) (verdict, string) {
	switch {
	case o.unbuilt:
		return notBuilt, "the mutated package does not build"
	case len(o.others) > 0:
		return otherTests, "ran too: " + strings.Join(o.others, ", ")
	case o.race:
		return notAsserted, "the race detector reported, not the test"
	case o.result == "pass":
		return survived, "the test passes without the protection"
	case o.result == "skip":
		return skipped, "the test skips itself"
	case !o.started:
		return notAsserted, "the test was not reached"
	case strings.Contains(o.output, "panic: test timed out after"):
		return notAsserted, "the test ran into the timeout"
	case !o.complete:
		return notAsserted, "the test binary ended by a panic or an exit"
	case !o.asserted:
		return notAsserted, "no assertion in the test's output"
	}
	return killed, ""
}
