// Command scenarios prints which tests prove which failure scenario on which database.
//
// Usage, from the module's root:
//
//	go run ./tests/scenarios [-groups A,B] build/test.json…
//	go run ./tests/scenarios -list
//
// The arguments are outputs of go test -json. A test shows the lines it proves in its name
// (TestA2_Copies, TestA1_A9_Ids) and the database in its path (TestStore/sqlite/TestA2_Copies).
// The lines, the databases and the declared holes stand in tests/scenarios/scenarios.txt.
// The exit status is 1 if a cell is empty: only a test that passed fills it.
package main

import (
	_ "embed"
	"flag"
	"fmt"
	"os"
	"strings"
)

//go:embed scenarios.txt
var scenarios string

func main() {
	os.Exit(run())
}

func run() int {
	var (
		groups = flag.String("groups", "", "only these groups, such as `A,B`")
		list   = flag.Bool("list", false, "print lines and holes with their reasons, read no results")
	)
	flag.Parse()

	catalog, err := parse("scenarios.txt", scenarios)
	if err != nil {
		return usage(err)
	}
	if *groups != "" {
		if err := catalog.keep(strings.Split(*groups, ",")); err != nil {
			return usage(err)
		}
	}
	if *list {
		catalog.print(os.Stdout)
		return 0
	}

	if flag.NArg() == 0 {
		return usage(fmt.Errorf("name at least one output of go test -json"))
	}
	results := results{}
	for _, file := range flag.Args() {
		if err := readFile(file, results); err != nil {
			return usage(err)
		}
	}
	matrix := newMatrix(catalog, results.proofs(catalog))
	matrix.print(os.Stdout)
	if matrix.empty() > 0 {
		return 1
	}
	return 0
}

func readFile(file string, into results) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	tests, err := into.read(f)
	if err == nil && tests == 0 {
		err = fmt.Errorf("no test in it: want an output of go test -json")
	}
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	return nil
}

func usage(err error) int {
	fmt.Fprintln(os.Stderr, "scenarios:", err)
	return 2
}
