package inbox_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox"
)

// slowStore is a Store around another one: it says which deliveries took long.
type slowStore struct {
	inbox.AckedStore // and not only a Store: or produced messages would never be deleted

	limit time.Duration
}

func (s slowStore) Process(ctx context.Context, d inbox.Delivery, fn inbox.Func) (inbox.Result, error) {
	began := time.Now()
	result, err := s.AckedStore.Process(ctx, d, func(ctx context.Context) ([]*message.Message, error) {
		fmt.Println("in the transaction of", d.Key)
		return fn(ctx)
	})
	if time.Since(began) > s.limit {
		fmt.Println("took long:", d.Key)
	}
	fmt.Println(result.Outcome)
	return result, err
}

// A Store can be wrapped: what it does around fn happens inside the message's transaction.
func ExampleStore() {
	db, store := openStore()
	defer db.Close()
	in, err := inbox.New(slowStore{store, time.Minute}, inbox.Config{})
	check(err)
	handler := in.As("charge")(func(*message.Message) ([]*message.Message, error) { return nil, nil })
	for range 2 {
		_, err := handler(message.NewMessage("42", nil))
		check(err)
	}
	// Output:
	// in the transaction of charge/42
	// processed
	// duplicate
}

// Process can be called without the middleware, for messages that come another way than through a router.
func ExampleDelivery() {
	db, store := openStore()
	defer db.Close()
	ctx := context.Background()
	d := inbox.Delivery{
		Key:         inbox.Key{Consumer: "import", Source: "bank", ID: "statement-42"},
		Fingerprint: inbox.Fingerprint{}, // every copy has the same content
	}
	for range 2 {
		var result inbox.Result
		result, err := store.Process(ctx, d, func(ctx context.Context) ([]*message.Message, error) {
			tx, err := sqlinbox.TxFromContext(ctx)
			if err != nil {
				return nil, err
			}
			_, err = tx.ExecContext(ctx, "INSERT INTO charges (order_id) VALUES (?)", d.Key.ID)
			return nil, err
		})
		check(err)
		fmt.Println(result.Outcome)
	}
	fmt.Println("charges:", count(db, "charges"))
	// Output:
	// processed
	// duplicate
	// charges: 1
}

// What a handler returned and no ack has proved to be published comes back with its duplicate, under the same UUID.
func ExampleReplayPolicy() {
	db, store := openStore()
	defer db.Close()
	in, err := inbox.New(store, inbox.Config{Replay: inbox.ReplayUntilAcked})
	check(err)
	handler := in.As("charge")(func(*message.Message) ([]*message.Message, error) {
		fmt.Println("charged")
		return []*message.Message{message.NewMessage("receipt-42", nil)}, nil
	})
	for range 2 {
		msg := message.NewMessage("42", nil)
		produced, err := handler(msg)
		check(err)
		fmt.Println("to publish:", produced[0].UUID)
		msg.Nack() // as a router does when it cannot publish
	}
	// Output:
	// charged
	// to publish: receipt-42
	// to publish: receipt-42
}

// outbox is a table of one's own; package sqlinbox/outbox has one for the tables of watermill-sql.
func outbox(ctx context.Context) (message.Publisher, error) {
	tx, err := sqlinbox.TxFromContext(ctx)
	if err != nil {
		return nil, err // inbox.ErrNoTx
	}
	return publisherFunc(func(topic string, messages ...*message.Message) error {
		for _, msg := range messages {
			if _, err := tx.ExecContext(ctx, "INSERT INTO outbox (topic, uuid) VALUES (?, ?)", topic, msg.UUID); err != nil {
				return err
			}
		}
		return nil
	}), nil
}

type publisherFunc func(topic string, messages ...*message.Message) error

func (f publisherFunc) Publish(topic string, messages ...*message.Message) error {
	return f(topic, messages...)
}

func (publisherFunc) Close() error { return nil }

// With an Outbox the messages that a handler returns are written in its transaction, and another process sends them.
func ExampleOutbox() {
	db, store := openStore()
	defer db.Close()
	in, err := inbox.New(store, inbox.Config{Outbox: outbox})
	check(err)
	pubSub := gochannel.NewGoChannel(gochannel.Config{BlockPublishUntilSubscriberAck: true}, watermill.NopLogger{})
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	check(err)
	router.AddHandler("charge", "orders", pubSub, "receipts", pubSub, func(*message.Message) ([]*message.Message, error) {
		return []*message.Message{message.NewMessage("receipt-42", nil)}, nil
	}).AddMiddleware(in.Middleware)

	stop := run(router)
	for range 2 {
		check(pubSub.Publish("orders", message.NewMessage("42", nil)))
	}
	stop()
	check(pubSub.Close())
	fmt.Println("outbox:", count(db, "outbox"))
	// Output: outbox: 1
}

// A publisher that is made once, as a cqrs.EventBus wants it, and finds the transaction in the message's context.
func ExampleTxPublisher() {
	db, store := openStore()
	defer db.Close()
	in, err := inbox.New(store, inbox.Config{})
	check(err)
	var publisher *inbox.TxPublisher
	publisher, err = inbox.NewTxPublisher(outbox, inbox.TxPublisherConfig{})
	check(err)

	handler := in.As("charge")(func(msg *message.Message) ([]*message.Message, error) {
		return nil, publisher.Publish("receipts", message.NewMessageWithContext(msg.Context(), "receipt-42", nil))
	})
	_, err = handler(message.NewMessage("42", nil))
	check(err)
	fmt.Println("outbox:", count(db, "outbox"))

	err = publisher.Publish("receipts", message.NewMessage("receipt-43", nil))
	fmt.Println("outside of a handler:", errors.Is(err, inbox.ErrNoTx))
	// Output:
	// outbox: 1
	// outside of a handler: true
}

// What is published outside of a handler too needs a publisher for that case.
func ExampleTxPublisherConfig() {
	publisher, err := inbox.NewTxPublisher(outbox, inbox.TxPublisherConfig{
		Fallback: publisherFunc(func(topic string, messages ...*message.Message) error {
			fmt.Println("sent to", topic, messages[0].UUID)
			return nil
		}),
	})
	check(err)
	check(publisher.Publish("receipts", message.NewMessage("receipt-42", nil)))
	// Output: sent to receipts receipt-42
}

// openStore gives a database in memory with the inbox's tables, and the tables of the examples' handlers.
func openStore() (*sql.DB, *sqlinbox.Store) {
	db, err := sql.Open("sqlite", "file::memory:?_txlock=immediate")
	check(err)
	db.SetMaxOpenConns(1) // each connection would have a memory of its own
	ctx := context.Background()
	_, err = db.ExecContext(ctx, "CREATE TABLE charges (order_id TEXT); CREATE TABLE outbox (topic TEXT, uuid TEXT)")
	check(err)
	store, err := sqlinbox.NewStore(ctx, db, sqlinbox.Config{Dialect: sqlinbox.SQLite, InitializeSchema: true})
	check(err)
	return db, store
}

// run runs a router until stop is called.
func run(router *message.Router) (stop func()) {
	done := make(chan error, 1)
	go func() { done <- router.Run(context.Background()) }()
	<-router.Running()
	return func() {
		check(router.Close())
		check(<-done)
	}
}

func count(db *sql.DB, table string) (n int) {
	check(db.QueryRowContext(context.Background(), "SELECT count(*) FROM "+table).Scan(&n))
	return n
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
