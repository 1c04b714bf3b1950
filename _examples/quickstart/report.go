package main

import (
	"errors"
	"fmt"
	"strings"

	inbox "github.com/watermill-contrib/watermill-inbox"
)

// tally is what happened in one process, or in both.
type tally struct {
	delivered  int // by the subscriber's decorator: deliveries that ended
	open       int // by the same: received, but not ended
	handled    int // by SQL
	duplicates int // by the Observer
	failed     int // by the Observer
	other      int // by the Observer: outcomes that this story does not have
}

// report puts together what the witnesses wrote down and what is in the business table.
type report struct {
	orders []order
	atEnd  map[int]int       // charges of each order
	byUUID map[string]*lives // what the witnesses saw of each order
	by     [3]tally          // by process; 0 is the total
}

// lives is what happened to one order in each process.
type lives [3]struct {
	outcomes []string
	open     int
}

func newReport(orders []order, entries []entry, afterKill, atEnd map[int]int) *report {
	r := &report{orders: orders, atEnd: atEnd, byUUID: map[string]*lives{}}
	for _, o := range orders {
		r.byUUID[o.UUID] = &lives{}
	}
	for _, e := range entries {
		t := &r.by[e.Process]
		seen := r.byUUID[e.UUID]
		if seen == nil { // no order has this id
			t.other++
			continue
		}
		life := &seen[e.Process]
		switch {
		case e.What == whatReceived:
			t.open++
			life.open++
		case e.Witness == subscriber: // acked or nacked
			t.delivered++
			t.open--
			life.open--
		default:
			t.count(inbox.Outcome(e.What))
			life.outcomes = append(life.outcomes, e.What)
		}
	}
	r.by[1].handled = sum(afterKill)
	r.by[2].handled = sum(atEnd) - sum(afterKill)
	for _, t := range r.by[1:] {
		r.by[0].add(t)
	}
	return r
}

func (t *tally) count(outcome inbox.Outcome) {
	switch outcome {
	case inbox.OutcomeProcessed: // SQL counts these
	case inbox.OutcomeDuplicate:
		t.duplicates++
	case inbox.OutcomeFailed:
		t.failed++
	default:
		t.other++
	}
}

func (t *tally) add(u tally) {
	t.delivered += u.delivered
	t.open += u.open
	t.handled += u.handled
	t.duplicates += u.duplicates
	t.failed += u.failed
	t.other += u.other
}

// check is the proof.
func (r *report) check() error {
	var wrong []error
	for _, o := range r.orders {
		if n := r.atEnd[o.ID]; n != 1 {
			wrong = append(wrong, fmt.Errorf("order %d has %d charges", o.ID, n))
		}
	}
	t := r.by[0]
	if t.handled != orderCount {
		wrong = append(wrong, fmt.Errorf("%d charges for %d orders", t.handled, orderCount))
	}
	if want := orderCount + t.duplicates + t.failed; t.delivered != want {
		wrong = append(wrong, fmt.Errorf("%d deliveries, but %d are accounted for", t.delivered, want))
	}
	if t.other != 0 {
		wrong = append(wrong, fmt.Errorf("%d outcomes that should not be", t.other))
	}
	return errors.Join(wrong...)
}

// in describes what happened to the order in one process.
func (l *lives) in(process int) string {
	seen := l[process].outcomes
	if l[process].open > 0 {
		seen = append(seen, "KILLED")
	}
	if len(seen) == 0 {
		return "-"
	}
	return strings.Join(seen, ", ")
}

func sum(charges map[int]int) (n int) {
	for _, c := range charges {
		n += c
	}
	return n
}
