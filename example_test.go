package inbox_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync/atomic"
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

// Every error names the phase, the message and the cause.
func ExampleError() {
	db, store := openStore()
	defer db.Close()
	in, err := inbox.New(store, inbox.Config{})
	check(err)
	declined := errors.New("card declined")

	_, err = in.As("charge")(func(*message.Message) ([]*message.Message, error) {
		return nil, declined
	})(message.NewMessage("42", nil))

	fmt.Println(err)
	fmt.Println(errors.Is(err, declined))
	var e *inbox.Error
	if errors.As(err, &e) && e.Phase == inbox.PhaseHandle {
		fmt.Println("the handler failed on", e.Key.ID)
	}
	// Output:
	// inbox: handle charge/42: card declined
	// true
	// the handler failed on 42
}

// Where an error happened tells what can be done about it.
func ExamplePhase() {
	for _, phase := range []inbox.Phase{inbox.PhaseIdentify, inbox.PhaseClaim, inbox.PhaseHandle, inbox.PhaseCommit} {
		fmt.Println(phase)
	}
	// Output:
	// identify
	// claim
	// handle
	// commit
}

// The two questions of middlewares outside of the inbox: would a retry help, and is the message at fault at all?
func ExampleIsPermanent() {
	for _, err := range []error{inbox.ErrMismatch, inbox.ErrInFlight, errors.New("card declined")} {
		fmt.Println(inbox.IsPermanent(err), inbox.IsTransient(err))
	}
	// Output:
	// true false
	// false true
	// false false
}

// An Observer is told once about every delivery: for metrics, and for alarms on what should never happen.
func ExampleObserver() {
	var handled, duplicates, lost atomic.Int64
	var observer inbox.Observer = func(_ context.Context, e inbox.Event) {
		switch e.Outcome {
		case inbox.OutcomeProcessed:
			handled.Add(1)
		case inbox.OutcomeDuplicate:
			duplicates.Add(1)
		case inbox.OutcomeLost, inbox.OutcomeAckedEarly:
			lost.Add(1)
		}
	}

	db, store := openStore()
	defer db.Close()
	in, err := inbox.New(store, inbox.Config{Observer: observer})
	check(err)
	handler := in.As("charge")(func(*message.Message) ([]*message.Message, error) { return nil, nil })
	for _, id := range []string{"1", "2", "1", "1"} {
		_, err := handler(message.NewMessage(id, nil))
		check(err)
	}
	fmt.Println("handled", handled.Load(), "duplicates", duplicates.Load(), "lost", lost.Load())
	// Output: handled 2 duplicates 2 lost 0
}

// What an Event says of a delivery.
func ExampleEvent() {
	db, store := openStore()
	defer db.Close()
	in, err := inbox.New(store, inbox.Config{Observer: func(_ context.Context, e inbox.Event) {
		fmt.Println(e.Key, e.Outcome, "unguarded:", e.Unguarded, "error:", e.Err)
	}})
	check(err)
	handler := in.As("charge")(func(*message.Message) ([]*message.Message, error) { return nil, nil })
	for _, id := range []string{"42", "0198c0de-0000-7000-8000-000000000042"} { // the second one carries its time
		_, err := handler(message.NewMessage(id, nil))
		check(err)
	}
	// Output:
	// charge/42 processed unguarded: true error: <nil>
	// charge/0198c0de-0000-7000-8000-000000000042 processed unguarded: false error: <nil>
}

// Outcomes are few and fixed, so that they can be the label of a metric.
func ExampleOutcome() {
	fmt.Println(inbox.OutcomeProcessed, inbox.OutcomeDuplicate, inbox.OutcomeInFlight, inbox.OutcomeFailed)
	// Output: processed duplicate in_flight failed
}

// A producer that serializes a message anew each time it sends it: only what matters belongs to the fingerprint.
// Where that cannot be told, MismatchReport lets the difference pass and counts it.
func ExampleMismatchPolicy() {
	db, store := openStore()
	defer db.Close()
	for _, policy := range []inbox.MismatchPolicy{inbox.MismatchReject, inbox.MismatchReport} {
		in, err := inbox.New(store, inbox.Config{
			Mismatch: policy,
			Observer: func(_ context.Context, e inbox.Event) {
				fmt.Println(policy, e.Outcome, errors.Is(e.Err, inbox.ErrMismatch))
			},
		})
		check(err)
		handler := in.As(string(policy))(func(*message.Message) ([]*message.Message, error) { return nil, nil })
		_, _ = handler(message.NewMessage("42", []byte(`{"amount": 10}`)))
		_, _ = handler(message.NewMessage("42", []byte(`{"amount": 20}`)))
	}
	// Output:
	// reject processed false
	// reject mismatch true
	// report processed false
	// report mismatch false
}

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
