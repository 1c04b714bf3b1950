package inbox_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/components/cqrs"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	_ "modernc.org/sqlite" // the driver of the examples

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox"
)

// A message is handled once, whatever the broker does. As makes the middleware for one handler; in a router,
// router.AddMiddleware(in.Middleware) does it for all of them under their own names.
func ExampleInbox() {
	db, store := openStore()
	defer db.Close()
	in, err := inbox.New(store, inbox.Config{})
	check(err)

	handler := in.As("charge")(func(msg *message.Message) ([]*message.Message, error) {
		tx, err := sqlinbox.TxFromContext(msg.Context())
		if err != nil {
			return nil, err
		}
		_, err = tx.ExecContext(msg.Context(), "INSERT INTO charges (order_id) VALUES (?)", string(msg.Payload))
		return nil, err
	})

	for range 3 { // the broker delivers it three times
		_, err = handler(message.NewMessage("0198c0de-0000-7000-8000-000000000042", []byte("order 42")))
		check(err)
	}
	fmt.Println("charges:", count(db, "charges"))
	// Output: charges: 1
}

// The order of the middlewares, outermost first. See the package documentation for what each place is good for.
func ExampleInbox_middlewareOrder() {
	db, store := openStore()
	defer db.Close()
	in, err := inbox.New(store, inbox.Config{
		Observer: func(_ context.Context, e inbox.Event) { fmt.Printf("%q is %s\n", e.Key.ID, e.Outcome) },
	})
	check(err)
	pubSub := gochannel.NewGoChannel(gochannel.Config{BlockPublishUntilSubscriberAck: true}, watermill.NopLogger{})
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	check(err)

	poison, err := middleware.PoisonQueueWithFilter(pubSub, "poison", func(err error) bool {
		return !inbox.IsTransient(err) // what is not the message's fault stays in the broker
	})
	check(err)
	retry := middleware.Retry{
		MaxRetries:          3,
		InitialInterval:     time.Millisecond,
		ResetContextOnRetry: true, // or the second attempt meets the first one's timeout
		ShouldRetry: func(params middleware.RetryParams) bool {
			return !inbox.IsPermanent(params.Err) // no retry cures those
		},
	}

	attempts := map[string]int{}
	router.AddConsumerHandler("charge", "orders", pubSub, sqlinbox.ConsumerHandler(
		func(ctx context.Context, tx *sql.Tx, msg *message.Message) error {
			_, err := tx.ExecContext(ctx, "INSERT INTO charges (order_id) VALUES (?)", msg.UUID)
			if err != nil {
				return err
			}
			attempts[msg.UUID]++
			switch {
			case msg.UUID == "unlucky" && attempts["unlucky"] == 1:
				return errors.New("the bank is closed") // rolled back
			case msg.UUID == "buggy" && attempts["buggy"] == 1:
				panic("nil pointer") // rolled back
			}
			return nil
		},
	)).AddMiddleware(
		poison,
		retry.Middleware,
		middleware.Timeout(time.Minute),
		middleware.Recoverer,
		in.Middleware,
		middleware.CorrelationID,
	)
	router.AddConsumerHandler("poisoned", "poison", pubSub, func(msg *message.Message) error {
		fmt.Println("poisoned:", msg.Metadata.Get(middleware.ReasonForPoisonedKey))
		return nil
	})

	stop := run(router)
	for _, id := range []string{"plain", "unlucky", "buggy", "plain", ""} {
		check(pubSub.Publish("orders", message.NewMessage(id, nil)))
	}
	stop()
	check(pubSub.Close())
	fmt.Println("charges:", count(db, "charges"))
	// Output:
	// "plain" is processed
	// "unlucky" is failed
	// "unlucky" is processed
	// "buggy" is panicked
	// "buggy" is processed
	// "plain" is duplicate
	// "" is refused
	// poisoned: inbox: identify charge/: message has no id: set one at the producer, or choose another Config.Identity
	// charges: 3
}

// Two handlers that are one consumer over two brokers must have one name.
func ExampleInbox_As() {
	db, store := openStore()
	defer db.Close()
	in, err := inbox.New(store, inbox.Config{Namespace: "billing"})
	check(err)

	charge := func(msg *message.Message) ([]*message.Message, error) {
		fmt.Println("charged", msg.UUID)
		return nil, nil
	}
	fromKafka, fromRabbit := in.As("charge")(charge), in.As("charge")(charge)

	_, err = fromKafka(message.NewMessage("42", nil))
	check(err)
	_, err = fromRabbit(message.NewMessage("42", nil))
	check(err)
	// Output: charged 42
}

// What most services set: a namespace, where several share a database, and where the message id is found.
func ExampleConfig() {
	db, store := openStore()
	defer db.Close()
	in, err := inbox.New(store, inbox.Config{
		Namespace: "billing",
		Identity:  inbox.ByMetadata("event_id"),
		Grace:     20 * time.Second, // to finish in, when the router closes
		Observer:  func(_ context.Context, e inbox.Event) { fmt.Println(e.Key, e.Outcome) },
	})
	check(err)

	msg := message.NewMessage(watermill.NewUUID(), nil)
	msg.Metadata.Set("event_id", "evt-42")
	_, err = in.As("charge")(func(*message.Message) ([]*message.Message, error) { return nil, nil })(msg)
	check(err)
	// Output: billing/charge/evt-42 processed
}

// Constructors return a ConfigError before anything is touched.
func ExampleConfigError() {
	_, err := inbox.New(nil, inbox.Config{})

	var bad *inbox.ConfigError
	if errors.As(err, &bad) {
		fmt.Println(bad.Field, bad.Reason)
	}
	// Output: store must not be nil: make one with sqlinbox.NewStore or pgxinbox.NewStore and check its error
}

// A router's Requeuer publishes messages of others again, under their own ids: nothing for the inbox to remember.
func ExampleBypassHandlers() {
	db, store := openStore()
	defer db.Close()
	in, err := inbox.New(store, inbox.Config{
		Bypass:   inbox.BypassHandlers("requeuer"),
		Observer: func(_ context.Context, e inbox.Event) { fmt.Println(e.Handler, e.Outcome) },
	})
	check(err)
	pubSub := gochannel.NewGoChannel(gochannel.Config{BlockPublishUntilSubscriberAck: true}, watermill.NopLogger{})
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	check(err)
	router.AddMiddleware(in.Middleware)
	router.AddConsumerHandler("requeuer", "failed", pubSub, func(*message.Message) error { return nil })
	router.AddConsumerHandler("charge", "orders", pubSub, func(*message.Message) error { return nil })

	stop := run(router)
	check(pubSub.Publish("failed", message.NewMessage("42", nil)))
	check(pubSub.Publish("orders", message.NewMessage("42", nil)))
	stop()
	check(pubSub.Close())
	fmt.Println("memory:", count(db, "watermill_inbox"))
	// Output:
	// requeuer bypassed
	// charge processed
	// memory: 1
}

// A CQRS processor acks the events that it has no handler for. Any marshaler of the cqrs component is a MessageNamer.
func ExampleMessageNamer() {
	type orderPlaced struct{ ID string }
	type orderShipped struct{ ID string }
	marshaler := cqrs.JSONMarshaler{GenerateName: cqrs.StructName}
	var namer inbox.MessageNamer = marshaler
	bypass := inbox.BypassUnknown(namer, marshaler.Name(orderPlaced{}))

	for _, event := range []any{orderPlaced{"42"}, orderShipped{"42"}} {
		msg, err := marshaler.Marshal(event)
		check(err)
		fmt.Println(marshaler.NameFromMessage(msg), "bypassed:", bypass(msg))
	}
	// Output:
	// orderPlaced bypassed: false
	// orderShipped bypassed: true
}

// An Identity of one's own: here the producers number their messages, each for itself.
func ExampleIdentity() {
	var identity inbox.Identity = func(msg *message.Message) (source, id string, err error) {
		return msg.Metadata.Get("producer"), msg.Metadata.Get("number"), nil
	}

	msg := message.NewMessage(watermill.NewUUID(), nil)
	msg.Metadata.Set("producer", "shop")
	msg.Metadata.Set("number", "42")
	source, id, err := identity(msg)
	fmt.Println(source, id, err)
	// Output: shop 42 <nil>
}

// An outbox table numbers its rows: together with the service's name that is an id.
func ExampleByJoinedMetadata() {
	identity := inbox.ByJoinedMetadata("source_service", "outbox_id")

	msg := message.NewMessage(watermill.NewUUID(), nil)
	msg.Metadata.Set("source_service", "shop/eu")
	msg.Metadata.Set("outbox_id", "42")
	_, id, err := identity(msg)
	fmt.Println(id, err)
	// Output: shop\/eu/42 <nil>
}

func ExampleByCloudEvents() {
	msg := message.NewMessage(watermill.NewUUID(), []byte(`{"amount": 10}`))
	msg.Metadata.Set("ce_id", "42")
	msg.Metadata.Set("ce_source", "/shop")
	source, id, err := inbox.ByCloudEvents()(msg)
	fmt.Println(source, id, err)
	// Output: /shop 42 <nil>
}

// Consumer, source and id: what differs in one of them is another message.
func ExampleKey() {
	key := inbox.Key{Consumer: "billing/charge", ID: "42"}
	fmt.Println(key, key.Storage())

	key.Consumer = "billing/refund"
	fmt.Println(key, key.Storage())
	// Output:
	// billing/charge/42 00c6592e-837b-d7fb-7682-06c0015b12f2
	// billing/refund/42 00c03d75-3fe3-f329-9d6a-8d2eefe2ce3f
}

// The primary key of a memory row, for a look into the table. An id that carries a time begins with it.
func ExampleStorageKey() {
	stored := inbox.Key{Consumer: "charge", ID: "017f22e2-79b0-7cc3-98c4-dc0c0c07398f"}.Storage()
	fmt.Printf("SELECT * FROM watermill_inbox WHERE key = '%s'\n", stored)
	// Output: SELECT * FROM watermill_inbox WHERE key = '017f22e2-79b0-7554-fa77-8c44116e9080'
}

// A producer that sets its messages' ids this way helps the consumer's memory to stay fast and to know their times.
func ExampleNewUUID() {
	msg := message.NewMessage(inbox.NewUUID(), nil)

	at, ok := inbox.IDTime(msg.UUID)
	fmt.Println(ok, time.Since(at) < time.Minute)
	// Output: true true
}
