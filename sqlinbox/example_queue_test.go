package sqlinbox_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox"
)

// The queue is a message.Subscriber for a router, or for a loop of one's own: an ack ends the message, a nack lets it wait
// for another attempt. Without the inbox's middleware that is at least once.
func ExampleSubscriber() {
	store, closeStore := openQueue()
	defer closeStore()
	subscriber, err := store.NewSubscriber(sqlinbox.SubscriberConfig{BackoffMin: time.Millisecond})
	check(err)
	check(store.NewPublisher(sqlinbox.PublisherConfig{}).Publish("emails", message.NewMessage("42", []byte("welcome"))))

	messages, err := subscriber.Subscribe(context.Background(), "emails")
	check(err)
	msg := <-messages
	fmt.Println(msg.UUID, string(msg.Payload), "for the first time")
	msg.Nack()
	msg = <-messages
	fmt.Println(msg.UUID, string(msg.Payload), "once more")
	msg.Ack()
	check(subscriber.Close()) // waits until the row is ended
	stats, err := store.Stats(context.Background())
	check(err)
	fmt.Println("left:", len(stats))
	// Output:
	// 42 welcome for the first time
	// 42 welcome once more
	// left: 0
}

// Everything may be left out. A bad value is found at once.
func ExampleSubscriberConfig() {
	config := sqlinbox.SubscriberConfig{
		Concurrency:  20,               // messages at work at once
		LeaseTime:    time.Minute,      // after which the messages of a dead process are taken up
		PollInterval: time.Second,      // for messages that other processes have stored
		MaxAttempts:  5,                // then a message is dead
		BackoffMin:   10 * time.Second, // doubles with each attempt
		BackoffMax:   time.Hour,
	}
	fmt.Println(config.Validate())
	config.LeaseTime = time.Millisecond
	fmt.Println(config.Validate())
	// Output:
	// <nil>
	// inbox: bad sqlinbox.SubscriberConfig.LeaseTime (1ms): must be at least 1 second, or 0 for the default
}

// Outgoing work: a call to another system that is to be made if, and only if, the handler's transaction is committed.
func ExamplePublisher() {
	store, closeStore := openQueue()
	defer closeStore()
	in, err := inbox.New(store, inbox.Config{})
	check(err)
	work := store.NewPublisher(sqlinbox.PublisherConfig{})
	charged := false
	handler := in.As("charge")(func(msg *message.Message) ([]*message.Message, error) {
		receipt := message.NewMessageWithContext(msg.Context(), "receipt-"+msg.UUID, msg.Payload) // with the context of the message
		if err := work.Publish("receipts", receipt); err != nil {
			return nil, err
		}
		if !charged {
			charged = true
			return nil, errors.New("the transaction is rolled back")
		}
		return nil, nil
	})
	for range 3 {
		_, err := handler(message.NewMessage("42", nil))
		stats, statsErr := store.Stats(context.Background())
		check(statsErr)
		var waiting int64
		for _, s := range stats {
			waiting += s.Waiting
		}
		fmt.Println("failed:", err != nil, "receipts to be sent:", waiting)
	}
	// Output:
	// failed: true receipts to be sent: 0
	// failed: false receipts to be sent: 1
	// failed: false receipts to be sent: 1
}

// With an order key the messages of one customer are worked on one after the other, in the order of their publishing,
// whatever the concurrency and however often one of them fails.
func ExamplePublisherConfig() {
	store, closeStore := openQueue()
	defer closeStore()
	publisher := store.NewPublisher(sqlinbox.PublisherConfig{
		OrderKey: func(msg *message.Message) string { return msg.Metadata.Get("customer") },
	})
	for _, id := range []string{"open", "deposit", "close"} {
		msg := message.NewMessage(id, nil)
		msg.Metadata.Set("customer", "alice")
		check(publisher.Publish("accounts", msg))
	}
	subscriber, err := store.NewSubscriber(sqlinbox.SubscriberConfig{BackoffMin: time.Millisecond})
	check(err)
	messages, err := subscriber.Subscribe(context.Background(), "accounts")
	check(err)
	failed := false
	for done := 0; done < 3; {
		msg := <-messages
		fmt.Println(msg.UUID)
		if msg.UUID == "deposit" && !failed {
			failed = true
			msg.Nack()
			continue
		}
		msg.Ack()
		done++
	}
	check(subscriber.Close())
	// Output:
	// open
	// deposit
	// deposit
	// close
}

// OnDead takes part in the transaction that gives a message up: for what must be undone, here as outgoing work.
func ExampleDead() {
	store, closeStore := openQueue()
	defer closeStore()
	work := store.NewPublisher(sqlinbox.PublisherConfig{})
	given := make(chan string, 1)
	subscriber, err := store.NewSubscriber(sqlinbox.SubscriberConfig{
		MaxAttempts: 2, BackoffMin: time.Millisecond,
		OnDead: func(ctx context.Context, dead sqlinbox.Dead) error {
			if _, err := sqlinbox.TxFromContext(ctx); err != nil {
				return err
			}
			given <- fmt.Sprintf("%s is dead after %d attempts: %v", dead.Key, dead.Attempts, dead.Cause)
			return work.Publish("release", message.NewMessageWithContext(ctx, "release-"+dead.Message.UUID, nil))
		},
	})
	check(err)
	check(work.Publish("charge", message.NewMessage("42", nil)))
	messages, err := subscriber.Subscribe(context.Background(), "charge")
	check(err)
	for range 2 {
		(<-messages).Nack()
	}
	fmt.Println(<-given)
	check(subscriber.Close())
	printStats(store)
	// Output:
	// charge/42 is dead after 2 attempts: the message was nacked
	// charge: 0 wait, 1 dead
	// release: 1 wait, 0 dead
}

// An operator's work: what is stuck, and the two ends of a dead message.
func ExampleQueue() {
	store, closeStore := openQueue()
	defer closeStore()
	ctx := context.Background()
	bury(store, "1", "2")

	stuck, err := store.Stuck(ctx, 0) // older than
	check(err)
	for _, m := range stuck {
		fmt.Println(m.Key, m.State, m.Attempts, m.LastError)
	}
	for range 2 { // the second call does nothing
		requeued, err := store.Requeue(ctx, stuck[0].Seq)
		check(err)
		fmt.Println("requeued:", requeued)
	}
	killed, err := store.Kill(ctx, stuck[1].Seq)
	check(err)
	fmt.Println("killed:", killed)
	printStats(store)
	// Output:
	// charge/1 dead 1 the message was nacked
	// charge/2 dead 1 the message was nacked
	// requeued: true
	// requeued: false
	// killed: true
	// charge: 1 wait, 0 dead
}

// The numbers of a consumer, for a metric.
func ExampleQueueStats() {
	store, closeStore := openQueue()
	defer closeStore()
	check(store.NewPublisher(sqlinbox.PublisherConfig{}).Publish("emails", message.NewMessage("1", nil), message.NewMessage("2", nil)))
	stats, err := store.Stats(context.Background())
	check(err)
	for _, s := range stats {
		fmt.Println(s.Consumer, s.Waiting, s.Publishing, s.Dead, s.OldestWaiting < time.Minute)
	}
	// Output: emails 2 0 0 true
}

// The check fails, and not only degrades, when a message waits for too long: nobody works on it.
func ExampleQueue_HealthCheck() {
	store, closeStore := openQueue()
	defer closeStore()
	healthy := store.HealthCheck(20 * time.Millisecond)
	fmt.Println("empty:", healthy(context.Background()))
	check(store.NewPublisher(sqlinbox.PublisherConfig{}).Publish("emails", message.NewMessage("1", nil)))
	time.Sleep(40 * time.Millisecond)
	fmt.Println("stuck:", errors.Is(healthy(context.Background()), sqlinbox.ErrQueueStuck))
	// Output:
	// empty: <nil>
	// stuck: true
}

// What an operator sees of a message, never its payload.
func ExampleQueuedMessage() {
	store, closeStore := openQueue()
	defer closeStore()
	bury(store, "order-42")
	stuck, err := store.Stuck(context.Background(), 0)
	check(err)
	m := stuck[0]
	fmt.Println(m.Key.Consumer, m.Key.ID, m.State == sqlinbox.QueueDead, m.LastError)
	// Output: charge order-42 true the message was nacked
}

// The states by which an operator decides.
func ExampleQueueState() {
	for _, state := range []sqlinbox.QueueState{sqlinbox.QueueWaiting, sqlinbox.QueuePublishing, sqlinbox.QueueDead} {
		fmt.Println(state)
	}
	// Output:
	// waiting
	// publishing
	// dead
}

func openQueue() (*sqlinbox.Store, func()) {
	db, remove := openFile()
	db.SetMaxOpenConns(1)
	store, err := sqlinbox.NewStore(context.Background(), db, sqlinbox.Config{Dialect: sqlinbox.SQLite, InitializeSchema: true})
	check(err)
	return store, remove
}

// bury stores messages for the consumer charge and lets each fail for good.
func bury(store *sqlinbox.Store, ids ...string) {
	dead := make(chan string, len(ids))
	subscriber, err := store.NewSubscriber(sqlinbox.SubscriberConfig{
		MaxAttempts: 1, Concurrency: 1, Logger: watermill.NopLogger{},
		OnDead: func(_ context.Context, d sqlinbox.Dead) error { dead <- d.Key.ID; return nil },
	})
	check(err)
	messages, err := subscriber.Subscribe(context.Background(), "charge")
	check(err)
	for _, id := range ids {
		check(store.NewPublisher(sqlinbox.PublisherConfig{}).Publish("charge", message.NewMessage(id, nil)))
		(<-messages).Nack()
		<-dead
	}
	check(subscriber.Close())
}

func printStats(store *sqlinbox.Store) {
	stats, err := store.Stats(context.Background())
	check(err)
	for _, s := range stats {
		fmt.Printf("%s: %d wait, %d dead\n", s.Consumer, s.Waiting, s.Dead)
	}
}
