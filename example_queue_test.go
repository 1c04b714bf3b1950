package inbox_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox"
)

// A consumer that stores its messages, acks them at once and works on them later, without a transaction until it asks for
// one.
func ExampleTwoPhase() {
	db, store := openStore()
	defer db.Close()
	in, err := inbox.New(store, inbox.Config{})
	check(err)
	queue, err := store.NewSubscriber(sqlinbox.SubscriberConfig{})
	check(err)
	broker := gochannel.NewGoChannel(gochannel.Config{BlockPublishUntilSubscriberAck: true}, watermill.NopLogger{})
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	check(err)
	router.AddMiddleware(in.Middleware)

	charged := make(chan string, 1)
	_, err = inbox.TwoPhase(router, in, inbox.TwoPhaseConfig{
		Name: "charge", Topic: "orders", Subscriber: broker, Queue: queue,
		Handler: func(msg *message.Message) ([]*message.Message, error) {
			time.Sleep(10 * time.Millisecond) // the payment provider takes its time: no transaction is open, no connection held
			tx, err := sqlinbox.TxFromContext(msg.Context())
			if err != nil {
				return nil, err
			}
			_, err = tx.ExecContext(msg.Context(), "INSERT INTO charges (order_id) VALUES (?)", string(msg.Payload))
			charged <- msg.UUID
			return nil, err
		},
	})
	check(err)

	stop := run(router)
	for range 2 { // Publish returns when the intake has acked
		check(broker.Publish("orders", message.NewMessage("42", []byte("order 42"))))
	}
	fmt.Println("stored and acked twice")
	fmt.Println("charged", <-charged)
	stop() // waits for what is at work
	fmt.Println("charges:", count(db, "charges"))
	// Output:
	// stored and acked twice
	// charged 42
	// charges: 1
}

// What is missing is told before anything is registered.
func ExampleTwoPhaseConfig() {
	db, store := openStore()
	defer db.Close()
	in, err := inbox.New(store, inbox.Config{})
	check(err)
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	check(err)
	_, err = inbox.TwoPhase(router, in, inbox.TwoPhaseConfig{Name: "charge", Topic: "orders"})
	fmt.Println(err)
	fmt.Println("handlers:", len(router.Handlers()))
	// Output:
	// inbox: bad TwoPhaseConfig.Subscriber (<nil>): is required
	// handlers: 0
}

// One message for two consumers: each has it in the queue once, and works on it at its own pace.
func ExampleInbox_Intake() {
	db, store := openStore()
	defer db.Close()
	in, err := inbox.New(store, inbox.Config{Observer: func(_ context.Context, e inbox.Event) {
		fmt.Println(e.Key, "is", e.Outcome)
	}})
	check(err)
	intake := in.Intake("charge", "ship") // in a router: AddConsumerHandler("intake", "orders", subscriber, intake)
	for range 2 {
		check(intake(message.NewMessage("42", []byte("order 42"))))
	}
	// Output:
	// charge/42 is stored
	// ship/42 is stored
	// charge/42 is queued
	// ship/42 is queued
}

// The queue is used without a router here: one message, two attempts. The provider is called in the first of them only.
func ExampleStep() {
	work(func(ctx context.Context, attempt int) error {
		charge, err := inbox.Step(ctx, "charge", func(context.Context) (string, error) {
			fmt.Println("calling the provider")
			return "ch_1", nil
		})
		if err != nil {
			return err
		}
		fmt.Println("attempt", attempt, "has", charge)
		if attempt == 1 {
			return errors.New("the process might as well have died here")
		}
		return nil
	})
	// Output:
	// calling the provider
	// attempt 1 has ch_1
	// attempt 2 has ch_1
}

// A result that is stored as it is.
func ExampleStepBytes() {
	work(func(ctx context.Context, attempt int) error {
		receipt, err := inbox.StepBytes(ctx, "receipt", func(context.Context) ([]byte, error) {
			return []byte("%PDF"), nil
		})
		fmt.Printf("attempt %d: %s\n", attempt, receipt)
		if attempt == 1 {
			return errors.New("once more")
		}
		return err
	})
	// Output:
	// attempt 1: %PDF
	// attempt 2: %PDF
}

// The key for the other system is the same in every attempt, and another one for every message and label.
func ExampleIdempotencyKey() {
	work(func(ctx context.Context, attempt int) error {
		for _, label := range []string{"charge", "refund"} {
			key, err := inbox.IdempotencyKey(ctx, label)
			if err != nil {
				return err
			}
			fmt.Println(attempt, label, key)
		}
		if attempt == 1 {
			return errors.New("once more")
		}
		return nil
	})
	// Output:
	// 1 charge 6f94ea37-6280-8b87-a057-f6f8d5a6d418
	// 1 refund 0870820b-9c8b-8251-a5f9-55c6a286951d
	// 2 charge 6f94ea37-6280-8b87-a057-f6f8d5a6d418
	// 2 refund 0870820b-9c8b-8251-a5f9-55c6a286951d
}

// A handler can tell whether its message came out of the queue, and as which one it was stored.
func ExampleLeaseFromContext() {
	work(func(ctx context.Context, _ int) error {
		lease, leased := inbox.LeaseFromContext(ctx)
		fmt.Println(leased, lease.Delivery().Key, "attempt", lease.Delivery().Attempt)
		return nil
	})
	_, leased := inbox.LeaseFromContext(context.Background())
	fmt.Println(leased)
	// Output:
	// true charge/42 attempt 1
	// false
}

// Retries and the end of a message from the queue belong to its row: Retry and PoisonQueue are for the other messages.
func ExampleUnleased() {
	retry := middleware.Retry{MaxRetries: 2, InitialInterval: time.Millisecond}
	runs := 0
	handler := inbox.Unleased(retry.Middleware)(func(*message.Message) ([]*message.Message, error) {
		runs++
		return nil, errors.New("no")
	})
	_, err := handler(message.NewMessage("from the broker", nil))
	fmt.Println(runs, err)

	runs = 0
	_, err = handler(leasedMessage(context.Background(), newFakeLease(nil, inbox.Delivery{}), "from the queue"))
	fmt.Println(runs, err)
	// Output:
	// 3 no
	// 1 no
}

// Enqueue is what the intake calls; a program can call it too, for messages that come another way than through a broker.
func ExampleQueueStore() {
	db, store := openStore()
	defer db.Close()
	var queue inbox.QueueStore = store
	for range 2 {
		stored := queue.Enqueue(context.Background(), []inbox.Entry{entry("1", "a")})
		fmt.Println(stored[0].Outcome)
	}
	// Output:
	// stored
	// queued
}

// Entries with one order key are worked on one after the other, in the order in which they were stored.
func ExampleEntry() {
	db, store := openStore()
	defer db.Close()
	first, second := entry("1", "open the account"), entry("2", "close the account")
	first.OrderKey, second.OrderKey = "alice", "alice"
	for _, stored := range store.Enqueue(context.Background(), []inbox.Entry{first, second}) {
		fmt.Println(stored.Outcome)
	}
	// Output:
	// stored
	// stored
}

// Each entry has its own answer: one that is refused keeps none of the others out.
func ExampleStored() {
	db, store := openStore()
	defer db.Close()
	for _, stored := range store.Enqueue(context.Background(), []inbox.Entry{entry("1", "a"), entry("1", "b"), entry("2", "c")}) {
		if stored.Err != nil {
			fmt.Println("refused:", errors.Is(stored.Err, inbox.ErrMismatch))
			continue
		}
		fmt.Println(stored.Outcome)
	}
	// Output:
	// stored
	// refused: true
	// stored
}

// A lease can be wrapped by whoever delivers leased messages: a Subscriber's decorator, or a test.
func ExampleLease() {
	db, store := openStore()
	defer db.Close()
	in, err := inbox.New(store, inbox.Config{})
	check(err)
	lease := newFakeLease(store, inbox.Delivery{Key: inbox.Key{Consumer: "charge", ID: "order-42"}, Attempt: 2})
	fmt.Println("of this store:", lease.Of(store))

	handler := in.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		key, _ := inbox.KeyFromContext(msg.Context())
		fmt.Println("handled", key)
		return nil, nil
	})
	_, err = handler(leasedMessage(context.Background(), lease, "42"))
	check(err)
	// Output:
	// of this store: true
	// handled charge/order-42
}

func entry(id, content string) inbox.Entry {
	sum := sha256.Sum256([]byte(content))
	return inbox.Entry{
		Delivery: inbox.Delivery{Key: inbox.Key{Consumer: "charge", ID: id}, Fingerprint: inbox.Fingerprint(sum[:16])},
		Message:  message.NewMessage(id, []byte(content)),
	}
}

// work stores one message and tries it until an attempt gives no error.
func work(handle func(ctx context.Context, attempt int) error) {
	db, store := openStore()
	defer db.Close()
	done := make(chan struct{})
	in, err := inbox.New(store, inbox.Config{Observer: func(_ context.Context, e inbox.Event) {
		if e.Outcome == inbox.OutcomeProcessed {
			close(done)
		}
	}})
	check(err)
	check(in.Intake("charge")(message.NewMessage("42", nil)))
	queue, err := store.NewSubscriber(sqlinbox.SubscriberConfig{BackoffMin: time.Millisecond})
	check(err)
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	check(err)
	attempt := 0
	router.AddConsumerHandler("charge", "charge", queue, func(msg *message.Message) error {
		attempt++
		return handle(msg.Context(), attempt)
	}).AddMiddleware(in.Middleware)
	stop := run(router)
	<-done
	stop()
}
