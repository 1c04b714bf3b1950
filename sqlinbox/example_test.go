package sqlinbox_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	_ "modernc.org/sqlite" // the driver of the examples

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox"
)

// The tables are made at the first start; a program whose role may not do that runs [sqlinbox.Migrate] before.
func ExampleNewStore() {
	db, remove := openFile()
	defer remove()
	ctx := context.Background()

	_, err := sqlinbox.NewStore(ctx, db, sqlinbox.Config{Dialect: sqlinbox.SQLite})
	fmt.Println("without tables:", errors.Is(err, inbox.ErrSchema))

	_, err = sqlinbox.NewStore(ctx, db, sqlinbox.Config{Dialect: sqlinbox.SQLite, InitializeSchema: true})
	fmt.Println("with InitializeSchema:", err)
	// Output:
	// without tables: true
	// with InitializeSchema: <nil>
}

// Everything but Dialect may be left out. A bad value is found before the database is asked.
func ExampleConfig() {
	config := sqlinbox.Config{
		Dialect:      sqlinbox.PostgreSQL,
		Schema:       "billing",       // defaults to current_schema()
		TablePrefix:  "inbox",         // billing.inbox, billing.inbox_consumers, …
		InFlightWait: 2 * time.Second, // a copy waits so long for the first one
		TxRetries:    -1,              // a serialization failure goes to the broker at once
		IdleTimeout:  time.Minute,     // the server gives up clients that are silent for so long
		Isolation:    sql.LevelSerializable,
	}
	fmt.Println(config.Validate())

	config.TablePrefix = "inbox; DROP TABLE orders"
	fmt.Println(config.Validate())
	// Output:
	// <nil>
	// inbox: bad sqlinbox.Config.TablePrefix ("inbox; DROP TABLE orders"): must be a letter or underscore and up to 39 more letters, digits or underscores
}

// The dialect is the kind of database, whatever the driver behind database/sql is called.
func ExampleDialect() {
	for _, dialect := range []sqlinbox.Dialect{sqlinbox.PostgreSQL, sqlinbox.SQLite, "oracle"} {
		err := sqlinbox.Config{Dialect: dialect}.Validate()
		fmt.Println(dialect, "is known:", err == nil)
	}
	// Output:
	// postgresql is known: true
	// sqlite is known: true
	// oracle is known: false
}

// A store is the memory behind an inbox: the middleware calls it, the program only makes it. Two processes on one
// database share the memory.
func ExampleStore() {
	db, remove := openFile()
	defer remove()

	for _, process := range []string{"first", "second"} {
		store, err := sqlinbox.NewStore(context.Background(), db, sqlinbox.Config{Dialect: sqlinbox.SQLite, InitializeSchema: true})
		check(err)
		in, err := inbox.New(store, inbox.Config{
			Consumer: func(*message.Message) string { return "charge" },
			Observer: func(_ context.Context, e inbox.Event) { fmt.Println(process, "process:", e.Outcome) },
		})
		check(err)
		handler := in.Middleware(func(msg *message.Message) ([]*message.Message, error) {
			_, err := sqlinbox.TxFromContext(msg.Context())
			return nil, err
		})
		_, err = handler(message.NewMessage("0198c0de-0000-7000-8000-000000000042", nil))
		check(err)
	}
	// Output:
	// first process: processed
	// second process: duplicate
}

// What the handler writes in the transaction and the memory of its message are committed together, or not at all.
func ExampleTxFromContext() {
	db, remove := openFile()
	defer remove()
	store, err := sqlinbox.NewStore(context.Background(), db, sqlinbox.Config{Dialect: sqlinbox.SQLite, InitializeSchema: true})
	check(err)
	in, err := inbox.New(store, inbox.Config{Consumer: func(*message.Message) string { return "charge" }})
	check(err)

	attempt := 0
	handler := in.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		tx, err := sqlinbox.TxFromContext(msg.Context())
		if err != nil {
			return nil, err
		}
		if _, err := tx.ExecContext(msg.Context(), "INSERT INTO charges (order_id) VALUES (?)", string(msg.Payload)); err != nil {
			return nil, err
		}
		if attempt++; attempt == 1 {
			return nil, errors.New("card declined") // the charge is rolled back
		}
		return nil, nil // and this time committed
	})
	for range 3 {
		_, err := handler(message.NewMessage("0198c0de-0000-7000-8000-000000000042", []byte("order 42")))
		fmt.Println("charges:", countCharges(db), "error:", err)
	}

	_, err = sqlinbox.TxFromContext(context.Background())
	fmt.Println("outside a handler:", errors.Is(err, inbox.ErrNoTx))
	// Output:
	// charges: 0 error: inbox: handle charge/0198c0de-0000-7000-8000-000000000042: card declined
	// charges: 1 error: <nil>
	// charges: 1 error: <nil>
	// outside a handler: true
}

// The handler gets the transaction as an argument: it cannot forget it.
func ExampleConsumerHandler() {
	db, remove := openFile()
	defer remove()
	store, err := sqlinbox.NewStore(context.Background(), db, sqlinbox.Config{Dialect: sqlinbox.SQLite, InitializeSchema: true})
	check(err)
	in, err := inbox.New(store, inbox.Config{Namespace: "billing"})
	check(err)
	pubSub := gochannel.NewGoChannel(gochannel.Config{BlockPublishUntilSubscriberAck: true}, watermill.NopLogger{})
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	check(err)
	router.AddMiddleware(in.Middleware)

	router.AddConsumerHandler("charge", "orders", pubSub, sqlinbox.ConsumerHandler(
		func(ctx context.Context, tx *sql.Tx, msg *message.Message) error {
			_, err := tx.ExecContext(ctx, "INSERT INTO charges (order_id) VALUES (?)", string(msg.Payload))
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
	fmt.Println("charges:", countCharges(db))
	// Output: charges: 1
}

// Migrations may be run by a job of their own, with a role that may create tables, before the programs start.
func ExampleMigrate() {
	db, remove := openFile()
	defer remove()
	ctx := context.Background()
	config := sqlinbox.Config{Dialect: sqlinbox.SQLite}

	fmt.Println("before:", errors.Is(sqlinbox.Validate(ctx, db, config), inbox.ErrSchema))
	check(sqlinbox.Migrate(ctx, db, config))
	check(sqlinbox.Migrate(ctx, db, config)) // does nothing
	fmt.Println("after:", sqlinbox.Validate(ctx, db, config))

	check(sqlinbox.MigrateDown(ctx, db, config, 0)) // the memory goes with the tables
	fmt.Println("undone:", errors.Is(sqlinbox.Validate(ctx, db, config), inbox.ErrSchema))
	// Output:
	// before: true
	// after: <nil>
	// undone: true
}

// The SQL of the migrations can be given to another tool, such as goose or Flyway.
func ExampleMigrationSQL() {
	up, down, err := sqlinbox.MigrationSQL(sqlinbox.Config{Dialect: sqlinbox.PostgreSQL, Schema: "billing"})
	check(err)
	for line := range strings.Lines(up) {
		if strings.HasPrefix(line, "CREATE SCHEMA") || strings.HasPrefix(line, `CREATE TABLE "billing"."watermill_inbox" (`) {
			fmt.Print(line)
		}
	}
	fmt.Println(strings.Contains(down, `DROP TABLE "billing"."watermill_inbox";`))
	// Output:
	// CREATE SCHEMA IF NOT EXISTS "billing";
	// CREATE TABLE "billing"."watermill_inbox" (
	// true
}

// openFile opens an SQLite file with a table of charges, as the package documentation says.
func openFile() (db *sql.DB, remove func()) {
	dir, err := os.MkdirTemp("", "sqlinbox-example-")
	check(err)
	db, err = sql.Open("sqlite", "file:"+filepath.Join(dir, "billing.db")+
		"?_txlock=immediate&_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_pragma=synchronous(NORMAL)")
	check(err)
	_, err = db.ExecContext(context.Background(), "CREATE TABLE charges (order_id TEXT NOT NULL)")
	check(err)
	return db, func() {
		check(db.Close())
		check(os.RemoveAll(dir))
	}
}

func countCharges(db *sql.DB) (n int) {
	check(db.QueryRowContext(context.Background(), "SELECT count(*) FROM charges").Scan(&n))
	return n
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
