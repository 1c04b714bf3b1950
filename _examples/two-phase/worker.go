package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"github.com/watermill-contrib/watermill-inbox/sqlinbox"
)

// work is a worker's part: the service, and the broker that delivers to it.
func work(ctx context.Context, dir string) error {
	upTo, err := strconv.Atoi(os.Getenv(upToEnv))
	if err != nil {
		return err
	}
	db, err := openDatabase(ctx, dir)
	if err != nil {
		return err
	}
	defer db.Close() //nolint:errcheck // everything is committed
	broker := gochannel.NewGoChannel(gochannel.Config{BlockPublishUntilSubscriberAck: true}, logger{})
	router, store, err := newRouter(ctx, db, broker, newProvider(os.Getenv(providerEnv)))
	if err != nil {
		return err
	}
	stopped := make(chan error, 1)
	go func() { stopped <- router.Run(ctx) }()
	select {
	case <-router.Running():
	case err := <-stopped:
		return err
	}
	if err := deliver(broker, upTo); err != nil {
		return err
	}
	if err := waitUntilDone(ctx, store); err != nil {
		return err
	}
	return errors.Join(router.Close(), <-stopped)
}

// deliver is the broker's part. Whatever was acked before comes again, as after a rewind, and each message twice: Publish
// returns when the intake has acked it.
func deliver(broker message.Publisher, upTo int) error {
	for id := 1; id <= upTo; id++ {
		payload, err := json.Marshal(order{ID: id, Cents: 100 * id})
		if err != nil {
			return err
		}
		msg := message.NewMessage(fmt.Sprintf("order-%d", id), payload)
		if err := broker.Publish(topic, msg, msg.Copy()); err != nil {
			return err
		}
	}
	return nil
}

// waitUntilDone returns when only dead messages are left in the queue.
func waitUntilDone(ctx context.Context, store *sqlinbox.Store) error {
	for {
		stats, err := store.Stats(ctx)
		if err != nil {
			return err
		}
		var left int64
		for _, s := range stats {
			left += s.Waiting + s.Publishing
		}
		if left == 0 {
			return nil
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("%d messages are left: %w", left, ctx.Err())
		}
	}
}

// logger prints errors, but not those that are part of the story.
type logger struct{ watermill.NopLogger }

func (l logger) Error(msg string, err error, _ watermill.LogFields) {
	if !errors.Is(err, errRefused) && !errors.Is(err, errNoReply) {
		fmt.Fprintf(os.Stderr, "%s: %v\n", msg, err)
	}
}

func (l logger) With(watermill.LogFields) watermill.LoggerAdapter { return l }
