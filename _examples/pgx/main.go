// Command pgx handles messages in transactions of native pgx: BEGIN and the inbox's claim travel together, so that a
// message costs the round trips of a bare transaction.
package main

import (
	"context"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/_examples/internal/demo"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox/pgxinbox"
)

func main() { demo.Main(run) }

// charge is the handler. tx is pgx's own, with savepoints and batches; the inbox commits it.
func charge(ctx context.Context, tx pgx.Tx, msg *message.Message) error {
	order, err := demo.ParseOrder(msg)
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, `INSERT INTO charges (order_id, cents) VALUES ($1, $2)`, order.ID, order.Cents)
	return err
}

func run(ctx context.Context, databaseURL string) error {
	pool, err := pgxpool.New(ctx, databaseURL)
	if err != nil {
		return err
	}
	defer pool.Close()
	// No UNIQUE: nothing but the inbox keeps a second charge out.
	if _, err := pool.Exec(ctx, `CREATE TABLE charges (order_id bigint NOT NULL, cents bigint NOT NULL)`); err != nil {
		return err
	}

	store, err := pgxinbox.NewStore(ctx, pool, pgxinbox.Config{InitializeSchema: true})
	if err != nil {
		return err
	}
	in, err := inbox.New(store, inbox.Config{Namespace: "shop", Observer: demo.Print, Logger: demo.Logger()})
	if err != nil {
		return err
	}
	router, err := message.NewRouter(message.RouterConfig{}, demo.Logger())
	if err != nil {
		return err
	}
	broker := demo.NewBroker()
	router.AddMiddleware(in.Middleware)
	router.AddConsumerHandler("charge", demo.Topic, broker, pgxinbox.ConsumerHandler(charge))

	if err := broker.Deliver(ctx, router); err != nil {
		return err
	}
	rows, err := pool.Query(ctx, `SELECT order_id FROM charges ORDER BY order_id`)
	if err != nil {
		return err
	}
	charged, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return err
	}
	return broker.Prove(charged)
}
