package main

import (
	"context"
	"time"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/inboxtest"
)

// cost is what one message costs a contender: exact, whatever the machine.
type cost struct {
	name      string
	cold      inboxtest.Counts // the first message on a connection, and of the process
	warm      inboxtest.Counts
	duplicate inboxtest.Counts
	wal       float64 // bytes of the write-ahead log, 0 if unknown
}

// countLatency makes sure that what a client pipelines is one round trip: nothing is answered before all was sent.
const countLatency = 2 * time.Millisecond

func countAll(ctx context.Context, dsn string, contenders []contender) ([]cost, error) {
	var costs []cost
	for _, one := range contenders {
		c, err := countOne(ctx, dsn, one)
		if err != nil {
			return nil, err
		}
		costs = append(costs, c)
	}
	return costs, nil
}

func countOne(ctx context.Context, dsn string, one contender) (cost, error) {
	c := cost{name: one.name}
	a, err := newArena(ctx, dsn, 1, countLatency)
	if err != nil {
		return c, err
	}
	defer a.close()
	h, err := one.setup(ctx, a)
	if err != nil {
		return c, err
	}
	id := inbox.NewUUID()
	for _, step := range []struct {
		counts *inboxtest.Counts
		id     string
	}{
		{&c.cold, inbox.NewUUID()},
		{&c.warm, inbox.NewUUID()}, // database/sql looks at a connection that it meets again for the first time
		{&c.warm, id},
		{&c.duplicate, id}, // the first one on the connection may prepare statements
		{&c.duplicate, id},
	} {
		a.proxy.ResetCounts()
		if err := deliver(ctx, h, step.id); err != nil {
			return c, err
		}
		*step.counts = a.proxy.Counts()
	}
	a.proxy.SetLatency(0)
	c.wal, err = wal(ctx, a, withoutImages, func() error { return deliver(ctx, h, inbox.NewUUID()) })
	return c, err
}
