package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"strings"
	"text/tabwriter"
)

var accounts = []string{"alice", "bob"}

// makeTables makes the business tables. They have no UNIQUE on purpose: nothing but the inbox and the keys keep a second
// booking out.
func makeTables(ctx context.Context, db *sql.DB) error {
	for _, statement := range []string{
		`CREATE TABLE payments (account text NOT NULL, cents bigint NOT NULL)`,
		`CREATE TABLE accounts (name text NOT NULL, cents bigint NOT NULL)`,
	} {
		if _, err := db.ExecContext(ctx, statement); err != nil {
			return err
		}
	}
	for _, name := range accounts {
		if _, err := db.ExecContext(ctx, `INSERT INTO accounts (name, cents) VALUES ($1, 0)`, name); err != nil {
			return err
		}
	}
	return nil
}

// report prints the table and the proof. Its error says what is wrong with the numbers.
func report(ctx context.Context, db *sql.DB, payments []payment, w *witness) error {
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 3, ' ', 0)
	fmt.Fprint(table, "for example\tthe client sends it\twhat became of the deliveries\n")
	for _, n := range []int{1, 3, 5, 6} {
		p := payments[n-1]
		fmt.Fprintf(table, "%s\t%s\t%s\n", p.id, p.sends(), strings.Join(w.lives[p.id], ", "))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if len(w.refused) > 0 {
		fmt.Printf("\nIn the poison queue are %d messages; the first one is there because of\n  %s\n", len(w.refused), w.refused[0])
	}
	fmt.Println()

	wrong := checkBalances(ctx, db, payments)
	var effects int
	if err := db.QueryRowContext(ctx, `SELECT COUNT(*) FROM payments`).Scan(&effects); err != nil {
		return errors.Join(wrong, err)
	}
	m, o, x := w.outcomes[duplicateMessage], w.outcomes[duplicateOperation], w.outcomes[mismatch]
	fmt.Printf("commands=%d effects=%d duplicate_messages=%d duplicate_operations=%d mismatches=%d\n", w.deliveries, effects, m, o, x)
	return errors.Join(wrong, w.check(effects, m, o, x))
}

// check is the proof.
func (w *witness) check(effects, m, o, x int) error {
	var wrong []error
	if effects != paymentCount {
		wrong = append(wrong, fmt.Errorf("%d payments are booked, want %d", effects, paymentCount))
	}
	if sum := effects + m + o + x; w.deliveries != sum {
		wrong = append(wrong, fmt.Errorf("%d deliveries, but %d are accounted for", w.deliveries, sum))
	}
	if o == 0 || x == 0 {
		wrong = append(wrong, errors.New("the second line of defence had nothing to do"))
	}
	if len(w.refused) != x {
		wrong = append(wrong, fmt.Errorf("%d mismatches, but %d messages in the poison queue", x, len(w.refused)))
	}
	return errors.Join(wrong...)
}

// checkBalances holds the accounts against what the client wanted at first.
func checkBalances(ctx context.Context, db *sql.DB, payments []payment) error {
	want := map[string]int64{}
	for _, p := range payments {
		want[p.account] += p.cents
	}
	var wrong []error
	for _, name := range accounts {
		var cents int64
		if err := db.QueryRowContext(ctx, `SELECT cents FROM accounts WHERE name = $1`, name).Scan(&cents); err != nil {
			return err
		}
		fmt.Printf("%s has %d cents, the sum of the payments is %d.\n", name, cents, want[name])
		if cents != want[name] {
			wrong = append(wrong, fmt.Errorf("%s has %d cents, want %d", name, cents, want[name]))
		}
	}
	return errors.Join(wrong...)
}
