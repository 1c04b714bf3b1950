// Command cqrs has commands and events behind an inbox, and every message arrives twice: the handler of a command
// publishes events inside its transaction, watermill-sql carries them on, and each of their handlers works once.
package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/components/cqrs"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/_examples/internal/demo"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox"
)

const commandCount = 5

func main() { demo.Main(run) }

func run(ctx context.Context, databaseURL string) error {
	db, err := sql.Open("pgx", databaseURL)
	if err != nil {
		return err
	}
	defer db.Close() //nolint:errcheck // everything is committed
	// No UNIQUE: nothing but the inbox keeps a second effect out.
	if _, err := db.ExecContext(ctx, `CREATE TABLE effects (name text NOT NULL, order_id bigint NOT NULL)`); err != nil {
		return err
	}
	// A pool of its own: a subscriber of watermill-sql holds a connection while a handler needs another one.
	relay, err := sql.Open("pgx", databaseURL)
	if err != nil {
		return err
	}
	defer relay.Close() //nolint:errcheck // the same

	store, err := sqlinbox.NewStore(ctx, db, sqlinbox.Config{Dialect: sqlinbox.PostgreSQL, InitializeSchema: true})
	if err != nil {
		return err
	}
	deliveries := make(chan inbox.Event, 1000)
	in, err := inbox.New(store, inbox.Config{
		Namespace: "shop",
		// A processor acks events that it has no handler for; they need no transaction and no memory.
		Bypass:   inbox.BypassUnknown(marshaler, marshaler.Name(PayOrder{}), marshaler.Name(OrderPaid{})),
		Observer: func(_ context.Context, e inbox.Event) { deliveries <- e },
		Logger:   demo.Logger(),
	})
	if err != nil {
		return err
	}
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		return err
	}
	router.AddMiddleware(in.Middleware)
	broker := gochannel.NewGoChannel(gochannel.Config{}, watermill.NopLogger{})
	if err := addHandlers(router, broker, relay); err != nil {
		return err
	}
	stopped := make(chan error, 1)
	go func() { stopped <- router.Run(ctx) }()
	<-router.Running()
	if err := send(ctx, broker); err != nil {
		return err
	}
	delivered, err := wait(ctx, deliveries)
	if err := errors.Join(err, router.Close(), <-stopped); err != nil {
		return err
	}
	return prove(ctx, db, delivered)
}

func send(ctx context.Context, broker message.Publisher) error {
	commands, err := cqrs.NewCommandBusWithConfig(broker, cqrs.CommandBusConfig{
		GeneratePublishTopic: func(p cqrs.CommandBusGeneratePublishTopicParams) (string, error) {
			return p.CommandName, nil
		},
		Marshaler: marshaler,
	})
	for id := int64(1); err == nil && id <= commandCount; id++ {
		err = commands.Send(ctx, PayOrder{id})
	}
	return err
}

// wait counts deliveries until two of each message are acked: a command for its handler, its two events for SendReceipt
// and the group.
func wait(ctx context.Context, deliveries <-chan inbox.Event) (total int, err error) {
	for acked := 0; acked < 2*(commandCount+2*2*commandCount); total++ {
		select {
		case e := <-deliveries:
			fmt.Printf("%-11s  %s\n", e.Handler, e.Outcome)
			if e.Outcome != inbox.OutcomeFailed {
				acked++
			}
		case <-ctx.Done():
			return total, demo.Stalled(fmt.Errorf("after %d deliveries: %w", total, ctx.Err()))
		}
	}
	return total, nil
}

func prove(ctx context.Context, db *sql.DB, deliveries int) error {
	const query = `SELECT count(*) FILTER (WHERE name = 'payment'), (SELECT count(*) FROM watermill_events),
  count(*) FILTER (WHERE name = 'receipt'), count(*) FILTER (WHERE name = 'sum'), count(*) FILTER (WHERE name = 'count'),
  count(DISTINCT (name, order_id)), (SELECT count(*) FROM watermill_inbox)
FROM effects`
	var n [7]int
	if err := db.QueryRowContext(ctx, query).Scan(&n[0], &n[1], &n[2], &n[3], &n[4], &n[5], &n[6]); err != nil {
		return err
	}
	fmt.Printf("commands=%d deliveries=%d effects=%d events=%d receipts=%d sums=%d counts=%d different=%d memory=%d\n",
		commandCount, deliveries, n[0], n[1], n[2], n[3], n[4], n[5], n[6])
	// Of each command: one payment, two events, and the three effects of one event. The memory has a row for each
	// message of each handler, one for the group, none for the event that nobody handles.
	if want := [7]int{5, 10, 5, 5, 5, 20, 15}; n != want {
		return fmt.Errorf("counted %v, want %v", n, want)
	}
	return nil
}
