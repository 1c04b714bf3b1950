package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox/pgxinbox"
)

// wakeup is how long a message waits behind a queue that was idle.
type wakeup struct {
	name    string
	goal    float64       // milliseconds, for the half of the messages; 0 is none
	latency time.Duration // added to each round trip
	pause   time.Duration // before a message, at most
	apart   bool          // it is stored by another process
	count   int           // messages

	took []time.Duration // from the commit of the intake to the start of the handler
}

func wakeups(quick bool) []wakeup {
	inOne, apart := 500, 100
	if quick {
		inOne, apart = 50, 10
	}
	return []wakeup{
		{name: "one process, loopback", goal: 20, pause: 200 * time.Millisecond, count: inOne},
		{name: "one process, 0.5 ms network", goal: 20, latency: network, pause: 200 * time.Millisecond, count: inOne},
		{name: "two processes, loopback", pause: 2 * time.Second, apart: true, count: apart},
	}
}

func measureWakeups(ctx context.Context, dsn string, all []wakeup) ([]wakeup, error) {
	for i := range all {
		if err := all[i].measure(ctx, dsn); err != nil {
			return nil, fmt.Errorf("%s: %w", all[i].name, err)
		}
	}
	return all, nil
}

// warmUp is how many messages are not counted.
const warmUp = 3

// measure handles one message after the other, each after a pause of random length.
func (w *wakeup) measure(ctx context.Context, dsn string) error {
	a, err := newArena(ctx, dsn, 4, w.latency)
	if err != nil {
		return err
	}
	defer a.close()
	var commit, took atomic.Int64 // of the message on its way
	began := time.Now()
	// A message is stored by one batch, and no other is sent until its handler begins.
	a.config.Tracer = &watcher{batchEnd: func() { commit.Store(int64(time.Since(began))) }}
	worker, err := pgxStore(ctx, a, pgxinbox.Config{})
	if err != nil {
		return err
	}
	intake := worker
	if w.apart {
		if intake, err = pgxStore(ctx, a, pgxinbox.Config{}); err != nil {
			return err
		}
	}
	handler := pgxinbox.ConsumerHandler(workPgx)
	h, err := queued(ctx, a, intake, worker, func(msg *message.Message) error {
		took.Store(int64(time.Since(began)) - commit.Load())
		return handler(msg)
	})
	if err != nil {
		return err
	}
	for n := range warmUp + w.count {
		select {
		case <-time.After(rand.N(w.pause)):
		case <-ctx.Done():
			return ctx.Err()
		}
		if err := deliver(ctx, h, inbox.NewUUID()); err != nil {
			return err
		}
		if n >= warmUp {
			w.took = append(w.took, time.Duration(took.Load()))
		}
	}
	return nil
}

// quantile is the time that the given part of the messages did not wait longer than, in milliseconds.
func (w *wakeup) quantile(part float64) float64 { return quantile(w.took, part) / 1000 }
