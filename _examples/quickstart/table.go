package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
)

// print writes the tables and the proof. Its error says what is wrong with the numbers.
func (r *report) print() error {
	row := func(name string, number func(tally) int) string {
		return fmt.Sprintf("%s\t%d\t%d\t%d\t", name, number(r.by[1]), number(r.by[2]), number(r.by[0]))
	}
	counts := printTable(tabwriter.AlignRight,
		"\tprocess 1\tprocess 2\ttotal\t",
		row("deliveries that ended", func(t tally) int { return t.delivered }),
		row("had their effect (rows by SQL)", func(t tally) int { return t.handled }),
		row("duplicates, handler not called", func(t tally) int { return t.duplicates }),
		row("failed, rolled back", func(t tally) int { return t.failed }),
		row("open at the kill, not counted", func(t tally) int { return t.open }))

	samples := []string{"for example\tin process 1\tin process 2\tcharges"}
	for _, id := range []int{1, failEvery, 40, killedAt, orderCount} {
		life := r.byUUID[r.orders[id-1].UUID]
		samples = append(samples, fmt.Sprintf("order %d\t%s\t%s\t%d", id, life.in(1), life.in(2), r.atEnd[id]))
	}
	if err := errors.Join(counts, printTable(0, samples...)); err != nil {
		return err
	}

	err := r.check()
	if err == nil {
		fmt.Printf("Each of the %d orders has exactly one charge.\n", orderCount)
	}
	t := r.by[0]
	fmt.Printf("delivered=%d handled=%d duplicates=%d failed=%d\n", t.delivered, t.handled, t.duplicates, t.failed)
	return err
}

func printTable(flags uint, rows ...string) error {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 3, ' ', flags)
	_, err := io.WriteString(w, strings.Join(rows, "\n")+"\n\n")
	return errors.Join(err, w.Flush())
}
