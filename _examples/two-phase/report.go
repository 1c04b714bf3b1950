package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"text/tabwriter"

	"github.com/watermill-contrib/watermill-inbox/sqlinbox"
)

// calls counts the lines of the provider's log by what was asked for, order and answer.
type calls map[entry]int

func (c calls) of(what string, order int, answer string) int {
	return c[entry{What: what, Order: order, Answer: answer}]
}

func readCalls(dir string) (calls, error) {
	file, err := os.Open(providerLog(dir))
	if err != nil {
		return nil, err
	}
	defer file.Close() //nolint:errcheck // it was only read
	c := calls{}
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		var e entry
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return nil, err
		}
		e.Key = ""
		c[e]++
	}
	return c, lines.Err()
}

// report holds the database against the provider's log and prints the proof. Its error says what is wrong.
func report(ctx context.Context, dir string) error {
	b, err := readBooks(ctx, dir)
	if err != nil {
		return err
	}
	c, err := readCalls(dir)
	if err != nil {
		return err
	}
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 3, ' ', 0)
	fmt.Fprint(table, "for example\tcharge calls: accepted\trepeated\trefused\tsteps replayed\treceipt\trelease\n")
	for _, id := range []int{1, lostReplyEvery, stolenEvery, 8, 18, 29} {
		fmt.Fprintf(table, "order %d\t%d\t%d\t%d\t%d\t%d\t%d\n", id, c.of("charge", id, accepted), c.of("charge", id, repeated),
			c.of("charge", id, refused), b.replayed[id], c.of("receipt", id, accepted), c.of("release", id, accepted))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if len(b.dead) > 0 {
		fmt.Printf("\nDead are %d messages, until an operator says Requeue or Kill; the first one because of\n  %s\n", len(b.dead), b.dead[0].LastError)
	}

	var charges, replayed int
	for id := 1; id <= orderCount; id++ {
		charges += c.of("charge", id, accepted)
		replayed += b.replayed[id]
	}
	wrong := check(b, c)
	if replayed == 0 {
		wrong = errors.Join(wrong, errors.New("no stored step was used"))
	}
	if charges != len(b.charges) {
		wrong = errors.Join(wrong, fmt.Errorf("%d orders are completed, but the provider has accepted %d charges", len(b.charges), charges))
	}
	fmt.Printf("\norders=%d charges=%d steps_replayed=%d dead=%d\n", len(b.charges), charges, replayed, len(b.dead))
	return wrong
}

// check is the proof, order by order.
func check(b books, c calls) error {
	var wrong []error
	is := func(id int, what string, got, want int) {
		if got != want {
			wrong = append(wrong, fmt.Errorf("order %d: %s %d times, want %d", id, what, got, want))
		}
	}
	for id := 1; id <= orderCount; id++ {
		charged, given := 1, 0
		if id%stolenEvery == 0 {
			charged, given = 0, 1
		}
		is(id, "accepted by the provider", c.of("charge", id, accepted), charged)
		is(id, "completed", b.charges[id], charged)
		is(id, "receipt sent", c.of("receipt", id, accepted), charged)
		is(id, "reserved", c.of("reserve", id, accepted), 1)
		is(id, "reservation released", c.of("release", id, accepted), given)
		is(id, "cancelled", b.cancelled[id], given)
	}
	for _, m := range b.dead {
		if m.State != sqlinbox.QueueDead || m.Key.Consumer != "shop/charge" {
			wrong = append(wrong, fmt.Errorf("%s is left in the queue, %s: %s", m.Key, m.State, m.LastError))
		}
	}
	if want := orderCount / stolenEvery; len(b.dead) != want {
		wrong = append(wrong, fmt.Errorf("%d messages are dead, want %d", len(b.dead), want))
	}
	for _, s := range shifts() {
		switch s.place { // the kills were where they should be
		case inStep:
			if c.of("charge", s.killedAt, repeated) == 0 {
				wrong = append(wrong, fmt.Errorf("order %d: the charge was not called again", s.killedAt))
			}
		case afterStep, beforeCommit:
			is(s.killedAt, "step replayed", b.replayed[s.killedAt], 2)
			is(s.killedAt, "charge called again", c.of("charge", s.killedAt, repeated), 0)
		}
	}
	return errors.Join(wrong...)
}
