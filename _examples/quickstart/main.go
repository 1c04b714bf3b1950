// Command quickstart shows the promise of the inbox: 100 orders arrive three times each, some handlers fail at first,
// one process is killed inside a handler, and every order is charged exactly once.
//
// It needs only Go: an SQLite file in a temporary folder is the database, gochannel is the broker. The part to copy is
// service.go.
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
	orderCount = 100
	copies     = 3
	failEvery  = 7  // the first attempt at orders 7, 14, 21, … fails
	killedAt   = 71 // process 1 dies inside the handler of this order
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()

	var err error
	if process, dir, ok := childArgs(); ok {
		err = work(ctx, process, dir)
	} else {
		err = story(ctx)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "quickstart:", err)
		os.Exit(1)
	}
}

// story is the parent's part: it starts one process, kills it, starts another one, and counts.
func story(ctx context.Context) (err error) {
	dir, err := os.MkdirTemp("", "inbox-quickstart-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	orders, err := makeOrders(dir)
	if err != nil {
		return err
	}
	fmt.Printf("%d orders, each delivered %d times. The first attempt at every %dth order fails.\n\n", orderCount, copies, failEvery)

	first, err := startChild(ctx, 1, dir, handlerPoint(killedAt))
	if err != nil {
		return err
	}
	if err := first.waitForPoint(); err != nil {
		return err
	}
	if err := first.kill(); err != nil {
		return err
	}
	afterKill, err := countCharges(ctx, dir)
	if err != nil {
		return err
	}
	fmt.Printf("process 1  killed by SIGKILL inside the handler of order %d: after its INSERT, before its commit.\n", killedAt)
	fmt.Printf("           In the file now: %d orders charged; order %d has %d charges.\n", len(afterKill), killedAt, afterKill[killedAt])

	second, err := startChild(ctx, 2, dir, "")
	if err != nil {
		return err
	}
	if err := second.wait(); err != nil {
		return err
	}
	atEnd, err := countCharges(ctx, dir)
	if err != nil {
		return err
	}
	fmt.Printf("process 2  went on with the same file: whatever was not acked was delivered again.\n\n")

	entries, err := readJournal(dir)
	if err != nil {
		return err
	}
	return newReport(orders, entries, afterKill, atEnd).print()
}
