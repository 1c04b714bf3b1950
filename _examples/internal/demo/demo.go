// Package demo is the scenery of the PostgreSQL examples: a schema that is gone afterwards, a broker that delivers
// every order three times, and the proof at the end. What the examples are about is in their own files.
package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	inbox "github.com/watermill-contrib/watermill-inbox"
)

// Topic is where the orders arrive.
const Topic = "orders"

const (
	orderCount = 3
	copies     = 3
)

// Order is what the messages carry.
type Order struct {
	ID    int64 `json:"id"`
	Cents int64 `json:"cents"`
}

// ParseOrder reads a message.
func ParseOrder(msg *message.Message) (Order, error) {
	var o Order
	err := json.Unmarshal(msg.Payload, &o)
	return o, err
}

// Main calls run with the address of a PostgreSQL schema of its own, and exits with 1 if it fails.
func Main(run func(ctx context.Context, databaseURL string) error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := withSchema(ctx, run); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// Print is an Observer that prints what became of each delivery.
func Print(_ context.Context, e inbox.Event) {
	fmt.Printf("message %s  %-9s  %v\n", e.Key.ID, e.Outcome, e.Duration.Round(100*time.Microsecond))
}

// Logger prints errors on stderr, and leaves out how a router starts and stops.
func Logger() watermill.LoggerAdapter {
	return watermill.NewSlogLogger(slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})))
}

// Broker is a gochannel.
type Broker struct {
	*gochannel.GoChannel
	deliveries atomic.Int64
	acked      chan struct{}
}

// NewBroker gives a broker that has nothing to deliver yet.
func NewBroker() *Broker {
	return &Broker{
		GoChannel: gochannel.NewGoChannel(gochannel.Config{}, watermill.NopLogger{}),
		acked:     make(chan struct{}, orderCount*copies),
	}
}

// Deliver runs the router, sends every order three times, all at once, and returns when all are acked and the router
// is closed.
func (b *Broker) Deliver(ctx context.Context, router *message.Router) error {
	router.AddSubscriberDecorators(message.MessageTransformSubscriberDecorator(b.count))
	stopped := make(chan error, 1)
	go func() { stopped <- router.Run(ctx) }()
	select {
	case <-router.Running():
	case err := <-stopped:
		return err
	}
	for id := int64(1); id <= orderCount; id++ {
		payload, err := json.Marshal(Order{ID: id, Cents: 100 * id})
		if err != nil {
			return err
		}
		uuid := inbox.NewUUID() // made once: it is what the copies are known by
		for range copies {
			if err := b.Publish(Topic, message.NewMessage(uuid, payload)); err != nil {
				return err
			}
		}
	}
	for range orderCount * copies {
		select {
		case <-b.acked:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return errors.Join(router.Close(), <-stopped)
}

// count looks at every delivery on its way to the router.
func (b *Broker) count(msg *message.Message) {
	b.deliveries.Add(1)
	go func() {
		select {
		case <-msg.Acked():
			b.acked <- struct{}{}
		case <-msg.Nacked(): // it comes again
		}
	}()
}

// Prove prints the numbers. It gives an error unless charged, the orders in the business table, holds each order once.
func (b *Broker) Prove(charged []int64) error {
	fmt.Printf("orders=%d deliveries=%d effects=%d\n", orderCount, b.deliveries.Load(), len(charged))
	slices.Sort(charged)
	for i, id := range charged {
		if id != int64(i+1) {
			return fmt.Errorf("charged were the orders %v, want each of 1 to %d once", charged, orderCount)
		}
	}
	if len(charged) != orderCount || b.deliveries.Load() < orderCount*copies {
		return fmt.Errorf("%d charges, want %d", len(charged), orderCount)
	}
	return nil
}
