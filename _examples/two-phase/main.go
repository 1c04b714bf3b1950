// Command two-phase shows the mode for slow handlers: orders are stored and acked at once, and charged later at a payment
// provider, over HTTP. Three workers are killed where it hurts most, answers of the provider get lost, some cards are
// refused. Every order is charged exactly once, or given up and never charged.
//
// It needs only Go: an SQLite file in a temporary folder is the database, gochannel is the broker, and the provider is a
// process of its own, with a log of its own. The part to copy is service.go.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"time"
)

const (
	orderCount     = 40
	stolenEvery    = 10 // the cards of orders 10, 20, 30, 40 are refused
	lostReplyEvery = 7  // orders 7, 14, 21, … are charged at the first call, but the answer is lost
)

// The places where workers are killed.
const (
	inStep       = "in the step: the provider has charged, the result is not stored"
	afterStep    = "after the step: its result is stored, no transaction is open"
	beforeCommit = "before the commit: after the handler's writes"
)

// shift is the life of one worker: the broker delivers the orders up to a number, and it is killed at one of them.
type shift struct {
	upTo     int
	place    string
	killedAt int
}

func shifts() []shift {
	return []shift{{13, inStep, 8}, {26, afterStep, 18}, {39, beforeCommit, 29}, {orderCount, "", 0}}
}

func crashPoint(place string, order int) string { return fmt.Sprintf("order %d %s", order, place) }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()

	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "two-phase:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	dir := os.Getenv(dirEnv)
	switch os.Getenv(roleEnv) {
	case roleProvider:
		endWithParent()
		return serveProvider(ctx, dir)
	case roleWorker:
		endWithParent()
		return work(ctx, dir)
	}
	return story(ctx)
}

// story is the parent's part: it starts the provider and the workers, kills three of them, and counts.
func story(ctx context.Context) (err error) {
	dir, err := os.MkdirTemp("", "inbox-two-phase-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	fmt.Printf("%d orders, each delivered twice by every broker that is started. Every %dth card is stolen, every %dth answer is lost.\n\n",
		orderCount, stolenEvery, lostReplyEvery)

	other, err := startChild(ctx, dir, roleProvider, "", shift{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, other.kill()) }()
	address, err := other.waitFor(addressLine)
	if err != nil {
		return err
	}
	for i, s := range shifts() {
		worker, err := startChild(ctx, dir, roleWorker, address, s)
		if err != nil {
			return err
		}
		if s.place == "" {
			fmt.Printf("worker %d  goes on until nothing waits any more.\n\n", i+1)
			if err := worker.wait(); err != nil {
				return err
			}
			continue
		}
		if _, err := worker.waitFor("crash-point " + crashPoint(s.place, s.killedAt)); err != nil {
			return err
		}
		if err := worker.kill(); err != nil {
			return err
		}
		charged, err := countCharges(ctx, dir, s.killedAt)
		if err != nil {
			return err
		}
		fmt.Printf("worker %d  killed by SIGKILL at order %d, %s.\n          Charges of the order in the file: %d.\n", i+1, s.killedAt, s.place, charged)
		if charged != 0 {
			return fmt.Errorf("order %d is charged before its transaction was committed", s.killedAt)
		}
	}
	return report(ctx, dir)
}
