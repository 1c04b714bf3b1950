// Command mutants takes the library's protections out, one at a time, and demands that the
// test written for each of them fails.
//
// Usage, from the module's root:
//
//	go run ./tests/mutants [-list] [-v] [-j 1] [-run regexp] [-scenarios A,B1]
//
// The mutants are described in tests/mutants/*.txt; the head of mutants.txt explains the
// format. No file of the tree is changed: a mutant is a build overlay. It is killed if
// exactly its named test fails, by an assertion, and passes without the mutation. The exit
// status is 1 unless all are killed.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"
)

func main() {
	os.Exit(run())
}

func run() int {
	var (
		dir       = flag.String("dir", "tests/mutants", "folder whose *.txt files describe the mutants")
		pattern   = flag.String("run", "", "only mutants whose name matches this `regexp`")
		scenarios = flag.String("scenarios", "", "only mutants of these groups or `lines`, such as A,B10")
		list      = flag.Bool("list", false, "print the mutants and run nothing")
		verbose   = flag.Bool("v", false, "print every command and its output")
		jobs      = flag.Int("j", 1, "mutants tested at the same time")
		timeout   = flag.Duration("timeout", 5*time.Minute, "limit of one test run")
	)
	flag.Parse()

	name, err := regexp.Compile(*pattern)
	if err != nil {
		return usage(err)
	}
	if *jobs < 1 || flag.NArg() > 0 {
		return usage(fmt.Errorf("-j %d, arguments %q", *jobs, flag.Args()))
	}
	mutants, err := load(*dir)
	if err != nil {
		return usage(err)
	}
	mutants = slices.DeleteFunc(mutants, func(m mutant) bool {
		return !name.MatchString(m.name) || !m.inScenarios(*scenarios)
	})

	if len(mutants) == 0 {
		return usage(fmt.Errorf("no mutant matches"))
	}

	table := newTable(os.Stdout, mutants)
	if *list {
		table.list()
		return 0
	}

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	root, err := os.Getwd()
	if err != nil {
		return usage(err)
	}
	r := &runner{root: root, timeout: *timeout}
	if *verbose {
		r.log = os.Stderr
	}

	table.head()
	dead := 0
	for report := range r.testAll(ctx, mutants, *jobs) {
		table.row(report)
		if report.verdict == killed {
			dead++
		}
	}
	fmt.Printf("%d mutants, %d killed, %d not killed\n", len(mutants), dead, len(mutants)-dead)
	if dead < len(mutants) {
		return 1
	}
	return 0
}

func usage(err error) int {
	fmt.Fprintln(os.Stderr, "mutants:", strings.TrimSpace(err.Error()))
	return 2
}
