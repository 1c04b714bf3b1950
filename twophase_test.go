package inbox_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/stretchr/testify/require"

	inbox "github.com/watermill-contrib/watermill-inbox"
)

func validTwoPhase(pubSub *gochannel.GoChannel) inbox.TwoPhaseConfig {
	return inbox.TwoPhaseConfig{Name: "charge", Topic: "orders", Subscriber: pubSub, Queue: pubSub, Handler: nothing}
}

func newTestRouter(t *testing.T) *message.Router {
	t.Helper()
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	require.NoError(t, err)
	return router
}

func TestTwoPhaseConfigErrors(t *testing.T) {
	t.Parallel()
	pubSub := gochannel.NewGoChannel(gochannel.Config{}, watermill.NopLogger{})
	var none *gochannel.GoChannel
	for name, tt := range map[string]struct {
		spoil func(c *inbox.TwoPhaseConfig)
		field string
	}{
		"no name":         {func(c *inbox.TwoPhaseConfig) { c.Name = "" }, "TwoPhaseConfig.Name"},
		"no topic":        {func(c *inbox.TwoPhaseConfig) { c.Topic = "" }, "TwoPhaseConfig.Topic"},
		"no subscriber":   {func(c *inbox.TwoPhaseConfig) { c.Subscriber = nil }, "TwoPhaseConfig.Subscriber"},
		"nil subscriber":  {func(c *inbox.TwoPhaseConfig) { c.Subscriber = none }, "TwoPhaseConfig.Subscriber"},
		"no queue":        {func(c *inbox.TwoPhaseConfig) { c.Queue = nil }, "TwoPhaseConfig.Queue"},
		"nil queue":       {func(c *inbox.TwoPhaseConfig) { c.Queue = none }, "TwoPhaseConfig.Queue"},
		"no handler":      {func(c *inbox.TwoPhaseConfig) { c.Handler = nil }, "TwoPhaseConfig.Handler"},
		"no publisher":    {func(c *inbox.TwoPhaseConfig) { c.PublishTopic = "receipts" }, "TwoPhaseConfig.Publisher"},
		"nil publisher":   {func(c *inbox.TwoPhaseConfig) { c.PublishTopic, c.Publisher = "receipts", none }, "TwoPhaseConfig.Publisher"},
		"no publishtopic": {func(c *inbox.TwoPhaseConfig) { c.Publisher = pubSub }, "TwoPhaseConfig.Publisher"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			config := validTwoPhase(pubSub)
			tt.spoil(&config)
			router := newTestRouter(t)
			handler, err := inbox.TwoPhase(router, mustNew(t, newFakeQueueStore(), inbox.Config{}), config)
			require.Nil(t, handler)
			var bad *inbox.ConfigError
			require.ErrorAs(t, err, &bad)
			require.Equal(t, tt.field, bad.Field)
			require.Empty(t, router.Handlers(), "nothing is registered")
		})
	}
}

func TestTwoPhaseNeedsARouterAnInboxAndAQueue(t *testing.T) {
	t.Parallel()
	config := validTwoPhase(gochannel.NewGoChannel(gochannel.Config{}, watermill.NopLogger{}))
	router, in := newTestRouter(t), mustNew(t, newFakeQueueStore(), inbox.Config{})
	var bad *inbox.ConfigError
	_, err := inbox.TwoPhase(nil, in, config)
	require.ErrorAs(t, err, &bad)
	_, err = inbox.TwoPhase(router, nil, config)
	require.ErrorAs(t, err, &bad)
	_, err = inbox.TwoPhase(router, mustNew(t, newFakeStore(), inbox.Config{}), config)
	require.ErrorIs(t, err, inbox.ErrNoQueue)
	require.Empty(t, router.Handlers())
}

// relay is what a store's queue does, in memory: what is stored comes out of it with a lease.
type relay struct {
	*fakeQueueStore
	topics chan string
	out    chan *message.Message
	last   *fakeLease
	mu     sync.Mutex
}

func (r *relay) Enqueue(ctx context.Context, entries []inbox.Entry) []inbox.Stored {
	stored := r.fakeQueueStore.Enqueue(ctx, entries)
	for _, entry := range entries {
		d := entry.Delivery
		d.Attempt = 1
		lease := newFakeLease(r, d)
		r.mu.Lock()
		r.last = lease
		r.mu.Unlock()
		msg := entry.Message.Copy()
		msg.SetContext(inbox.WithLease(context.Background(), lease))
		lease.msg = msg
		r.out <- msg
	}
	return stored
}

func (r *relay) Subscribe(_ context.Context, topic string) (<-chan *message.Message, error) {
	r.topics <- topic
	return r.out, nil
}

func (r *relay) Close() error { close(r.out); return nil }

func newRelay() *relay {
	return &relay{fakeQueueStore: newFakeQueueStore(), topics: make(chan string, 1), out: make(chan *message.Message, 10)}
}

func TestTwoPhaseRegistersIntakeAndWorker(t *testing.T) {
	t.Parallel()
	queue, seen := newRelay(), &events{}
	in := mustNew(t, queue, inbox.Config{Namespace: "billing", Observer: seen.observe})
	broker := gochannel.NewGoChannel(gochannel.Config{Persistent: true}, watermill.NopLogger{})
	router := newTestRouter(t)
	router.AddMiddleware(in.Middleware)
	handler, err := inbox.TwoPhase(router, in, inbox.TwoPhaseConfig{
		Name: "charge", Topic: "orders", Subscriber: broker, Queue: queue, PublishTopic: "receipts", Publisher: broker,
		Handler: func(msg *message.Message) ([]*message.Message, error) {
			return []*message.Message{message.NewMessage("receipt-"+msg.UUID, nil)}, nil
		},
	})
	require.NoError(t, err)
	around := make(chan string, 1)
	handler.AddMiddleware(func(next message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			around <- message.HandlerNameFromCtx(msg.Context())
			return next(msg)
		}
	})
	require.Len(t, router.Handlers(), 2)
	require.Contains(t, router.Handlers(), "charge")
	require.Contains(t, router.Handlers(), "charge_intake")

	receipts, err := broker.Subscribe(t.Context(), "receipts")
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() { done <- router.Run(context.Background()) }()
	<-router.Running()
	require.Equal(t, "billing/charge", <-queue.topics, "the queue's topic is the whole name of the consumer")
	require.NoError(t, broker.Publish("orders", message.NewMessage("42", nil)))
	receipt := <-receipts
	receipt.Ack()
	require.Equal(t, "receipt-42", receipt.UUID)
	require.Equal(t, "charge", <-around, "its middleware is the worker's")
	require.NoError(t, router.Close())
	require.NoError(t, <-done)

	key := inbox.Key{Consumer: "billing/charge", ID: "42"}
	require.Equal(t, []inbox.Outcome{inbox.OutcomeStored, inbox.OutcomeProcessed}, seen.outcomes(), "the middleware lets the intake pass")
	require.Equal(t, "charge_intake", seen.all()[0].Handler)
	require.Equal(t, "charge", seen.all()[1].Handler)
	require.Equal(t, key, seen.all()[0].Key)
	require.Equal(t, key, seen.all()[1].Key)
	require.Empty(t, queue.keys(), "not in the inbox's own store")
	require.Equal(t, []inbox.Key{key}, queue.last.keys(), "but by the lease")
	require.True(t, queue.last.only(t).Record)
}

func TestTwoPhaseWithoutAPublishTopicRefusesProducedMessages(t *testing.T) {
	t.Parallel()
	queue, seen := newRelay(), &events{}
	in := mustNew(t, queue, inbox.Config{Observer: seen.observe})
	broker := gochannel.NewGoChannel(gochannel.Config{}, watermill.NopLogger{})
	router := newTestRouter(t)
	router.AddMiddleware(in.Middleware)
	mine := errors.New("mine")
	_, err := inbox.TwoPhase(router, in, inbox.TwoPhaseConfig{
		Name: "charge", Topic: "orders", Subscriber: broker, Queue: queue,
		Handler: func(msg *message.Message) ([]*message.Message, error) {
			switch msg.UUID {
			case "fails":
				return []*message.Message{message.NewMessage("1", nil)}, mine
			case "produces":
				return []*message.Message{message.NewMessage("1", nil)}, nil
			}
			return nil, nil
		},
	})
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() { done <- router.Run(context.Background()) }()
	<-router.Running()
	require.Equal(t, "charge", <-queue.topics)
	require.NoError(t, broker.Publish("orders", message.NewMessage("fine", nil), message.NewMessage("fails", nil), message.NewMessage("produces", nil)))
	require.Eventually(t, func() bool { return len(seen.all()) == 6 }, 10*time.Second, time.Millisecond)
	require.NoError(t, router.Close())
	require.NoError(t, <-done)
	for _, event := range seen.all() {
		switch {
		case event.Outcome == inbox.OutcomeStored:
		case event.Key.ID == "fine":
			require.Equal(t, inbox.OutcomeProcessed, event.Outcome)
		case event.Key.ID == "fails":
			require.ErrorIs(t, event.Err, mine)
		default:
			require.ErrorIs(t, event.Err, inbox.ErrNoPublishTopic, "or they would be thrown away")
			require.True(t, inbox.IsTransient(event.Err))
		}
	}
}
