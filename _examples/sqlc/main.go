// Command sqlc uses code that sqlc generated, in the inbox's transaction: New(db).WithTx(tx).
package main

import (
	"context"
	_ "embed"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/_examples/internal/demo"
	"github.com/watermill-contrib/watermill-inbox/_examples/sqlc/charges"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox/pgxinbox"
)

//go:generate go run github.com/sqlc-dev/sqlc/cmd/sqlc@v1.31.1 generate

//go:embed schema.sql
var schema string

func main() { demo.Main(run) }

// charger has the handler. The queries are made once; WithTx binds them to the transaction of one message.
type charger struct{ queries *charges.Queries }

func (c charger) charge(ctx context.Context, tx pgx.Tx, msg *message.Message) error {
	order, err := demo.ParseOrder(msg)
	if err != nil {
		return err
	}
	return c.queries.WithTx(tx).AddCharge(ctx, charges.AddChargeParams{OrderID: order.ID, Cents: order.Cents})
}

func run(ctx context.Context, databaseURL string) error {
	pool, err := pgxpool.New(ctx, databaseURL)
	if err != nil {
		return err
	}
	defer pool.Close()
	if _, err := pool.Exec(ctx, schema); err != nil {
		return err
	}
	queries := charges.New(pool)

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
	router.AddConsumerHandler("charge", demo.Topic, broker, pgxinbox.ConsumerHandler(charger{queries}.charge))

	if err := broker.Deliver(ctx, router); err != nil {
		return err
	}
	charged, err := queries.ListCharged(ctx)
	if err != nil {
		return err
	}
	return broker.Prove(charged)
}
