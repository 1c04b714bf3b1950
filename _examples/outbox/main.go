// Command outbox puts what handlers return into their own transaction: rows of watermill-sql, committed together with
// what the handler wrote or not at all, which a subscriber carries on. It does so with watermill-sql/v3, then with v4.
package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/_examples/internal/demo"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox/pgxinbox"
)

func main() { demo.Main(run) }

// app is a service that charges orders and tells about it; what is outgoing about it is in outgoing.go.
type app struct {
	pool *pgxpool.Pool
	out  outgoing
	seen demo.Seen
}

// charge is the handler. What it returns goes through the outbox to the handler's publish topic. What it publishes
// itself goes the same way: the first attempt at some orders fails after that, and nothing of it may be left.
func (a *app) charge(msg *message.Message) ([]*message.Message, error) {
	ctx := msg.Context()
	order, err := demo.ParseOrder(msg)
	if err != nil {
		return nil, err
	}
	tx, err := pgxinbox.TxFromContext(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := tx.Exec(ctx, `INSERT INTO charges (version, order_id) VALUES ($1, $2)`, a.out.version, order.ID); err != nil {
		return nil, err
	}
	charged := message.NewMessageWithContext(ctx, inbox.NewUUID(), msg.Payload)
	if order.ID%2 == 1 && a.seen.First(order.ID) {
		return nil, errors.Join(errors.New("declined, this once"), a.out.publisher.Publish(a.out.topic, charged))
	}
	return []*message.Message{charged}, nil
}

func (a *app) run(ctx context.Context) error {
	store, err := pgxinbox.NewStore(ctx, a.pool, pgxinbox.Config{InitializeSchema: true})
	if err != nil {
		return err
	}
	in, err := inbox.New(store, inbox.Config{Namespace: "shop", Outbox: a.out.outbox, Observer: demo.Print})
	if err != nil {
		return err
	}
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		return err
	}
	broker := demo.NewBroker()
	router.AddMiddleware(in.Middleware)
	// The router gets nothing to publish. If it did, this publisher would refuse it: there is no transaction any more.
	router.AddHandler("charge-"+a.out.version, demo.Topic, broker, a.out.topic, a.out.publisher, a.charge)
	if err := broker.Deliver(ctx, router); err != nil {
		return err
	}

	rows, err := a.pool.Query(ctx, `SELECT order_id FROM charges WHERE version = $1 ORDER BY order_id`, a.out.version)
	if err != nil {
		return err
	}
	charged, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return err
	}
	var outgoing int
	if err := a.pool.QueryRow(ctx, `SELECT count(*) FROM watermill_`+a.out.topic).Scan(&outgoing); err != nil {
		return err
	}
	if err := broker.Prove(charged); err != nil {
		return err
	}
	return demo.ProveOutgoing(ctx, a.out.version, charged, outgoing, a.out.subscriber, a.out.topic)
}

func run(ctx context.Context, databaseURL string) error {
	pool, err := pgxpool.New(ctx, databaseURL)
	if err != nil {
		return err
	}
	defer pool.Close()
	if _, err := pool.Exec(ctx, `CREATE TABLE charges (version text NOT NULL, order_id bigint NOT NULL)`); err != nil {
		return err
	}
	// A pool of its own: watermill-sql's subscriber holds a connection while a handler needs another one.
	relay, err := pgxpool.New(ctx, databaseURL)
	if err != nil {
		return err
	}
	defer relay.Close()
	for _, open := range []func(*pgxpool.Pool) (outgoing, error){openV3, openV4} {
		out, err := open(relay)
		if err != nil {
			return err
		}
		if err := (&app{pool: pool, out: out}).run(ctx); err != nil {
			return fmt.Errorf("watermill-sql/%s: %w", out.version, err)
		}
	}
	return nil
}
