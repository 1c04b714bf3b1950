package businesskey_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/components/cqrs"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	_ "modernc.org/sqlite" // the driver of the examples

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/businesskey"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox"
)

// Both lines of defence in a router: the inbox, and the keys inside it. A copy of a message is stopped by the first, a
// command that was sent again in another message by the second.
func Example() {
	db, store := openStore()
	defer db.Close()
	keys, err := businesskey.New(store, businesskey.Config{})
	check(err)
	in, err := inbox.New(store, inbox.Config{
		Claims:   keys.Claims, // one round trip less on pgx
		Observer: func(_ context.Context, e inbox.Event) { fmt.Println(e.Key.ID, e.Outcome, e.Layer) },
	})
	check(err)
	pubSub := gochannel.NewGoChannel(gochannel.Config{BlockPublishUntilSubscriberAck: true}, watermill.NopLogger{})
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	check(err)
	router.AddConsumerHandler("transfer", "commands", pubSub, sqlinbox.ConsumerHandler(
		func(ctx context.Context, tx *sql.Tx, msg *message.Message) error {
			_, err := tx.ExecContext(ctx, "INSERT INTO transfers (text) VALUES (?)", string(msg.Payload))
			return err
		},
	)).AddMiddleware(in.Middleware, keys.Middleware)

	go func() { check(router.Run(context.Background())) }()
	<-router.Running()
	for _, uuid := range []string{"message-1", "message-1", "message-2"} {
		msg := message.NewMessage(uuid, []byte("100 to alice"))
		msg.Metadata.Set(businesskey.OperationIDMetadataKey, "transfer-42")
		check(pubSub.Publish("commands", msg)) // returns after the ack
	}
	check(router.Close())
	fmt.Println("transfers:", count(db))
	// Output:
	// message-1 processed message
	// message-1 duplicate message
	// message-2 duplicate operation
	// transfers: 1
}

// What an operation produced comes back with every repetition, under the same UUID.
func ExampleKeys_Middleware() {
	db, store := openStore()
	defer db.Close()
	keys, err := businesskey.New(store, businesskey.Config{})
	check(err)
	in, err := inbox.New(store, inbox.Config{})
	check(err)
	handler := in.As("transfer")(keys.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		fmt.Println("transferred:", string(msg.Payload))
		return []*message.Message{message.NewMessage("receipt-42", nil)}, nil
	}))

	for _, payload := range []string{"100 to alice", "100 to alice", "900 to alice"} {
		msg := message.NewMessage(inbox.NewUUID(), []byte(payload)) // the client makes a new message each time
		msg.Metadata.Set(businesskey.OperationIDMetadataKey, "transfer-42")
		produced, err := handler(msg)
		for _, m := range produced {
			fmt.Println("to publish:", m.UUID)
		}
		fmt.Println("other content:", errors.Is(err, inbox.ErrMismatch))
	}
	// Output:
	// transferred: 100 to alice
	// to publish: receipt-42
	// other content: false
	// to publish: receipt-42
	// other content: false
	// other content: true
}

// Keys are safe for concurrent use; one of them serves all handlers.
func ExampleKeys() {
	db, store := openStore()
	defer db.Close()
	keys, err := businesskey.New(store, businesskey.Config{Missing: businesskey.PassThrough})
	check(err)
	handler := keys.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		fmt.Println("handled", msg.UUID)
		return nil, nil
	})

	_, err = handler(message.NewMessage("42", nil)) // no operation id
	check(err)
	fmt.Println("passed through:", keys.PassedThrough())
	// Output:
	// handled 42
	// passed through: 1
}

// A producer that puts the time of sending into the payload: only the fields that matter are compared. Two handlers
// with one scope share their operations.
func ExampleConfig() {
	db, store := openStore()
	defer db.Close()
	keys, err := businesskey.New(store, businesskey.Config{
		OperationID: func(msg *message.Message) (string, error) { return msg.Metadata.Get("idempotency_key"), nil },
		Scope:       func(*message.Message) string { return "transfers" },
		Fingerprint: func(msg *message.Message) []byte { return []byte(msg.Metadata.Get("amount")) },
	})
	check(err)
	byCard := keys.Middleware(func(*message.Message) ([]*message.Message, error) { fmt.Println("by card"); return nil, nil })
	byBank := keys.Middleware(func(*message.Message) ([]*message.Message, error) { fmt.Println("by bank"); return nil, nil })

	for i, handler := range []message.HandlerFunc{byCard, byBank} {
		msg := message.NewMessage(inbox.NewUUID(), fmt.Appendf(nil, "sent at %d", i))
		msg.Metadata.Set("idempotency_key", "42")
		msg.Metadata.Set("amount", "100")
		_, err := handler(msg)
		check(err)
	}
	// Output: by card
}

// A message without an operation id is refused unless it may pass.
func ExampleMissingPolicy() {
	db, store := openStore()
	defer db.Close()
	for _, policy := range []businesskey.MissingPolicy{businesskey.Require, businesskey.PassThrough} {
		keys, err := businesskey.New(store, businesskey.Config{Missing: policy})
		check(err)
		in, err := inbox.New(store, inbox.Config{})
		check(err)
		handler := in.As("transfer")(keys.Middleware(func(*message.Message) ([]*message.Message, error) { return nil, nil }))
		_, err = handler(message.NewMessage(inbox.NewUUID(), nil))
		fmt.Println(policy, errors.Is(err, inbox.ErrNoOperationID), inbox.IsPermanent(err))
	}
	// Output:
	// require true true
	// pass_through false false
}

// The same operation from an HTTP handler, where no message is: it has a transaction of its own. A repeated call gets
// what the first one gave.
func ExampleKeys_Do() {
	db, store := openStore()
	defer db.Close()
	keys, err := businesskey.New(store, businesskey.Config{})
	check(err)

	post := func(idempotencyKey, body string) ([]byte, error) {
		op := businesskey.Operation{Scope: "transfers", ID: idempotencyKey, Content: []byte(body)}
		return keys.Do(context.Background(), op, func(ctx context.Context) ([]byte, error) {
			tx, err := sqlinbox.TxFromContext(ctx)
			if err != nil {
				return nil, err
			}
			result, err := tx.ExecContext(ctx, "INSERT INTO transfers (text) VALUES (?)", body)
			if err != nil {
				return nil, err
			}
			id, err := result.LastInsertId()
			return fmt.Appendf(nil, "transfer number %d", id), err
		})
	}
	for range 2 {
		answer, err := post("42", "100 to alice")
		check(err)
		fmt.Println(string(answer))
	}
	_, err = post("42", "900 to alice")
	fmt.Println("other content:", errors.Is(err, inbox.ErrMismatch))
	fmt.Println("transfers:", count(db))
	// Output:
	// transfer number 1
	// transfer number 1
	// other content: true
	// transfers: 1
}

// Inside a handler an operation is part of the message's transaction, and its scope is the message's consumer.
func ExampleOperation() {
	db, store := openStore()
	defer db.Close()
	keys, err := businesskey.New(store, businesskey.Config{})
	check(err)
	in, err := inbox.New(store, inbox.Config{Namespace: "billing"})
	check(err)

	handler := in.As("invoice")(func(msg *message.Message) ([]*message.Message, error) {
		op := businesskey.Operation{ID: string(msg.Payload)} // no Content: only the id counts
		_, err := keys.Do(msg.Context(), op, func(context.Context) ([]byte, error) {
			fmt.Println("invoiced", string(msg.Payload))
			return nil, nil
		})
		return nil, err
	})
	for _, order := range []string{"order-1", "order-2", "order-1"} {
		_, err := handler(message.NewMessage(inbox.NewUUID(), []byte(order)))
		check(err)
	}
	// Output:
	// invoiced order-1
	// invoiced order-2
}

// A result of any type that encoding/json knows.
func ExampleDoJSON() {
	db, store := openStore()
	defer db.Close()
	keys, err := businesskey.New(store, businesskey.Config{})
	check(err)
	type receipt struct {
		Number int
		Cents  int64
	}

	for call := range 2 {
		r, err := businesskey.DoJSON(context.Background(), keys, businesskey.Operation{Scope: "transfers", ID: "42"},
			func(context.Context) (receipt, error) { return receipt{Number: call + 1, Cents: 10_000}, nil })
		check(err)
		fmt.Printf("%+v\n", r)
	}
	// Output:
	// {Number:1 Cents:10000}
	// {Number:1 Cents:10000}
}

// A batch of operations, in one transaction: those that were done before are not done again.
func ExampleKeys_DoAll() {
	db, store := openStore()
	defer db.Close()
	keys, err := businesskey.New(store, businesskey.Config{})
	check(err)

	for _, batch := range [][]string{{"1", "2"}, {"2", "3"}} {
		operations := make([]businesskey.Operation, len(batch))
		for i, id := range batch {
			operations[i] = businesskey.Operation{Scope: "transfers", ID: id}
		}
		results, err := keys.DoAll(context.Background(), operations,
			func(ctx context.Context, op businesskey.Operation) ([]byte, error) {
				tx, err := sqlinbox.TxFromContext(ctx)
				if err != nil {
					return nil, err
				}
				_, err = tx.ExecContext(ctx, "INSERT INTO transfers (text) VALUES (?)", op.ID)
				return []byte("receipt " + op.ID), err
			})
		check(err)
		fmt.Printf("%s, transfers: %d\n", results, count(db))
	}
	// Output:
	// [receipt 1 receipt 2], transfers: 2
	// [receipt 2 receipt 3], transfers: 3
}

// A command names its operation id with a struct tag, and a CommandBus with this marshaler sends it along.
func ExampleDecorate() {
	type Transfer struct {
		ID    string `inbox:"operation_id"`
		Cents int64
	}
	marshaler := cqrs.CommandEventMarshalerDecorator{
		CommandEventMarshaler: cqrs.JSONMarshaler{},
		DecorateFunc:          businesskey.Decorate(nil), // nil is ByTag
	}

	msg, err := marshaler.Marshal(Transfer{ID: "transfer-42", Cents: 10_000})
	check(err)
	fmt.Println(msg.Metadata.Get(businesskey.OperationIDMetadataKey))
	// Output: transfer-42
}

// A command without an id is found where it is sent.
func ExampleByTag() {
	type Transfer struct {
		ID string `inbox:"operation_id"`
	}
	id, err := businesskey.ByTag(&Transfer{ID: "transfer-42"})
	fmt.Println(id, err)

	_, err = businesskey.ByTag(Transfer{})
	fmt.Println(errors.Is(err, inbox.ErrNoOperationID))
	// Output:
	// transfer-42 <nil>
	// true
}

// openStore gives a database in memory with the inbox's tables and a table of transfers.
func openStore() (*sql.DB, *sqlinbox.Store) {
	ctx := context.Background()
	db, err := sql.Open("sqlite", "file::memory:?_txlock=immediate")
	check(err)
	db.SetMaxOpenConns(1) // each connection would have a memory of its own
	_, err = db.ExecContext(ctx, "CREATE TABLE transfers (id INTEGER PRIMARY KEY, text TEXT NOT NULL)")
	check(err)
	store, err := sqlinbox.NewStore(ctx, db, sqlinbox.Config{Dialect: sqlinbox.SQLite, InitializeSchema: true})
	check(err)
	return db, store
}

func count(db *sql.DB) (n int) {
	check(db.QueryRowContext(context.Background(), "SELECT count(*) FROM transfers").Scan(&n))
	return n
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
