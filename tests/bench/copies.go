package main

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	"github.com/watermill-contrib/watermill-inbox/sqlinbox/pgxinbox"
)

const (
	aboutCopies = `Four copies of each message are delivered at once, 8 messages at a time. The handler also sleeps for 2 ms, so that they
meet. Blocking in the database is the inbox's own claim, sent together with BEGIN, as an INSERT that waits for the first
copy's transaction. What is counted is messages, not copies.`
	aboutTwo = `The same with 16 messages at a time, two copies of each in one process and two in the other. The two are two stores, each
with a pool of its own, in the benchmark's process: they share nothing but the database.`
)

func copiesInOne() []contender {
	return []contender{
		{name: "pgx, blocking in the database", setup: copiesBlocking},
		{name: "pgx, inbox", against: "pgx, blocking in the database", goal: 2, setup: copiesInbox},
	}
}

func copiesInTwo() []contender {
	return []contender{
		{name: "pgx, blocking in the database", setup: inTwo(copiesBlocking)},
		{name: "pgx, inbox", against: "pgx, blocking in the database", goal: 1.4, setup: inTwo(copiesInbox)},
	}
}

func copiesBlocking(ctx context.Context, a *arena) (handle, error) {
	return blocking(ctx, a, workSlowly)
}

func copiesInbox(ctx context.Context, a *arena) (handle, error) {
	return inboxWith(ctx, a, pgxinbox.Config{}, workSlowly)
}

// slow is what a handler does beside its write, so that the copies meet.
const slow = 2 * time.Millisecond

func workSlowly(ctx context.Context, tx pgx.Tx, msg *message.Message) error {
	if err := workPgx(ctx, tx, msg); err != nil {
		return err
	}
	time.Sleep(slow)
	return nil
}

// copyNumber is the metadata that tells copies apart.
const copyNumber = "copy"

// deliverCopies hands over all copies of a message at once and returns when each has its answer.
func deliverCopies(ctx context.Context, h handle, id string, copies int) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	errs := make([]error, copies)
	for n := range copies {
		wg.Go(func() {
			msg := newMessage(id)
			msg.Metadata.Set(copyNumber, strconv.Itoa(n))
			msg.SetContext(ctx)
			errs[n] = h(msg)
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// inTwo stands for two processes: two stores, each with a pool of its own, that share nothing but the database; half of
// the copies go to each. That they run in one process changes nothing that they could know of each other.
func inTwo(setup func(context.Context, *arena) (handle, error)) func(context.Context, *arena) (handle, error) {
	return func(ctx context.Context, a *arena) (handle, error) {
		var processes [2]handle
		for i := range processes {
			var err error
			if processes[i], err = setup(ctx, a); err != nil {
				return nil, err
			}
		}
		return func(msg *message.Message) error {
			n, err := strconv.Atoi(msg.Metadata.Get(copyNumber))
			if err != nil {
				return err
			}
			return processes[n%len(processes)](msg)
		}, nil
	}
}
