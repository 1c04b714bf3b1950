package pgxinbox_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox/pgxinbox"
)

// The tables are made at the first start; a program whose role may not do that runs [pgxinbox.Migrate] before.
func ExampleNewStore() {
	pool, remove := openPool()
	defer remove()
	ctx := context.Background()

	_, err := pgxinbox.NewStore(ctx, pool, pgxinbox.Config{})
	fmt.Println("without tables:", errors.Is(err, inbox.ErrSchema))

	_, err = pgxinbox.NewStore(ctx, pool, pgxinbox.Config{InitializeSchema: true})
	fmt.Println("with InitializeSchema:", err)
	// Output:
	// without tables: true
	// with InitializeSchema: <nil>
}

// A store is the memory behind an inbox: the middleware calls it, the program only makes it.
func ExampleStore() {
	pool, remove := openPool()
	defer remove()
	store, err := pgxinbox.NewStore(context.Background(), pool, pgxinbox.Config{InitializeSchema: true})
	check(err)
	in, err := inbox.New(store, inbox.Config{
		Consumer: func(*message.Message) string { return "charge" },
		Observer: func(_ context.Context, e inbox.Event) { fmt.Println(e.Outcome) },
	})
	check(err)

	handler := in.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		tx, err := pgxinbox.TxFromContext(msg.Context())
		if err != nil {
			return nil, err
		}
		_, err = tx.Exec(msg.Context(), "INSERT INTO charges (order_id) VALUES ($1)", string(msg.Payload))
		return nil, err
	})
	for range 2 {
		_, err = handler(message.NewMessage("0198c0de-0000-7000-8000-000000000042", []byte("order 42")))
		check(err)
	}
	fmt.Println("charges:", countCharges(pool))
	// Output:
	// processed
	// duplicate
	// charges: 1
}

// The transaction is pgx's own, with savepoints. It belongs to the inbox: Commit and Rollback are refused.
func ExampleTxFromContext() {
	pool, remove := openPool()
	defer remove()
	store, err := pgxinbox.NewStore(context.Background(), pool, pgxinbox.Config{InitializeSchema: true})
	check(err)
	in, err := inbox.New(store, inbox.Config{Consumer: func(*message.Message) string { return "charge" }})
	check(err)

	handler := in.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		ctx := msg.Context()
		tx, err := pgxinbox.TxFromContext(ctx)
		if err != nil {
			return nil, err
		}
		if _, err := tx.Exec(ctx, "INSERT INTO charges (order_id) VALUES ($1)", string(msg.Payload)); err != nil {
			return nil, err
		}
		// A savepoint: what fails in it is undone, and the rest goes on.
		err = pgx.BeginFunc(ctx, tx, func(savepoint pgx.Tx) error {
			_, err := savepoint.Exec(ctx, "INSERT INTO charges (order_id) VALUES (NULL)")
			return err
		})
		fmt.Println("in the savepoint:", err != nil)
		return nil, nil
	})
	_, err = handler(message.NewMessage("0198c0de-0000-7000-8000-000000000042", []byte("order 42")))
	check(err)
	fmt.Println("charges:", countCharges(pool))

	impatient := in.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		tx, err := pgxinbox.TxFromContext(msg.Context())
		if err != nil {
			return nil, err
		}
		return nil, tx.Commit(msg.Context())
	})
	_, err = impatient(message.NewMessage("0198c0de-0000-7000-8000-000000000043", nil))
	fmt.Println("Commit is refused:", errors.Is(err, inbox.ErrTxManaged))
	// Output:
	// in the savepoint: true
	// charges: 1
	// Commit is refused: true
}

// The handler gets the transaction as an argument: it cannot forget it.
func ExampleConsumerHandler() {
	pool, remove := openPool()
	defer remove()
	store, err := pgxinbox.NewStore(context.Background(), pool, pgxinbox.Config{InitializeSchema: true})
	check(err)
	in, err := inbox.New(store, inbox.Config{Namespace: "billing"})
	check(err)
	pubSub := gochannel.NewGoChannel(gochannel.Config{BlockPublishUntilSubscriberAck: true}, watermill.NopLogger{})
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	check(err)
	router.AddMiddleware(in.Middleware)

	router.AddConsumerHandler("charge", "orders", pubSub, pgxinbox.ConsumerHandler(
		func(ctx context.Context, tx pgx.Tx, msg *message.Message) error {
			_, err := tx.Exec(ctx, "INSERT INTO charges (order_id) VALUES ($1)", string(msg.Payload))
			return err
		},
	))

	go func() { check(router.Run(context.Background())) }()
	<-router.Running()
	order := message.NewMessage("0198c0de-0000-7000-8000-000000000042", []byte("order 42"))
	for range 3 {
		check(pubSub.Publish("orders", order)) // returns after the ack
	}
	check(router.Close())
	fmt.Println("charges:", countCharges(pool))
	// Output: charges: 1
}

// The last write of a handler that needs no answer travels together with COMMIT.
func ExampleExecAtCommit() {
	pool, remove := openPool()
	defer remove()
	store, err := pgxinbox.NewStore(context.Background(), pool, pgxinbox.Config{InitializeSchema: true})
	check(err)
	in, err := inbox.New(store, inbox.Config{Consumer: func(*message.Message) string { return "charge" }})
	check(err)

	handler := in.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		return nil, pgxinbox.ExecAtCommit(msg.Context(), "INSERT INTO charges (order_id) VALUES ($1)", string(msg.Payload))
	})
	_, err = handler(message.NewMessage("0198c0de-0000-7000-8000-000000000042", []byte("order 42")))
	check(err)
	fmt.Println("charges:", countCharges(pool))
	// Output: charges: 1
}

// Migrations may be run by a job of their own, with a role that may create tables, before the programs start.
func ExampleMigrate() {
	pool, remove := openPool()
	defer remove()
	ctx := context.Background()

	fmt.Println("before:", errors.Is(pgxinbox.Validate(ctx, pool, pgxinbox.Config{}), inbox.ErrSchema))
	check(pgxinbox.Migrate(ctx, pool, pgxinbox.Config{}))
	check(pgxinbox.Migrate(ctx, pool, pgxinbox.Config{})) // does nothing
	fmt.Println("after:", pgxinbox.Validate(ctx, pool, pgxinbox.Config{}))
	// Output:
	// before: true
	// after: <nil>
}

// openPool opens a pool on DATABASE_URL whose search_path leads to a schema of the example's own, with a table of
// charges.
func openPool() (pool *pgxpool.Pool, remove func()) {
	ctx := context.Background()
	config, err := pgxpool.ParseConfig(os.Getenv("DATABASE_URL"))
	check(err)
	schema := "example_" + strings.ReplaceAll(inbox.NewUUID(), "-", "")
	config.ConnConfig.RuntimeParams["search_path"] = schema
	pool, err = pgxpool.NewWithConfig(ctx, config)
	check(err)
	_, err = pool.Exec(ctx, "CREATE SCHEMA "+schema+"; CREATE TABLE "+schema+".charges (order_id text NOT NULL)")
	check(err)
	return pool, func() {
		_, err := pool.Exec(ctx, "DROP SCHEMA "+schema+" CASCADE")
		check(err)
		pool.Close()
	}
}

func countCharges(pool *pgxpool.Pool) (n int) {
	check(pool.QueryRow(context.Background(), "SELECT count(*) FROM charges").Scan(&n))
	return n
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
