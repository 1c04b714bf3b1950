package tests

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/stretchr/testify/require"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/inboxtest"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox"
)

// newRouterRig is a rig whose consumers are the router's handlers.
func newRouterRig(t *testing.T, env *Env) *rig {
	t.Helper()
	r := &rig{Env: env, logs: &logs{}}
	var err error
	r.Inbox, err = inbox.New(env.Store, inbox.Config{Logger: r.logs, Observer: r.events.add})
	require.NoError(t, err)
	return r
}

// route runs a router until the test ends. It logs where the inbox does.
func (r *rig) route(t *testing.T, add func(router *message.Router)) {
	t.Helper()
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: patience}, r.logs)
	require.NoError(t, err)
	add(router)
	ended := make(chan struct{})
	var runErr error
	go func() {
		defer close(ended)
		runErr = router.Run(context.Background())
	}()
	t.Cleanup(func() {
		require.NoError(t, router.Close())
		await(t, ended, "the router's end")
		require.NoError(t, runErr)
	})
	await(t, router.Running(), "the router's start")
}

// newBroker is a Pub/Sub whose Publish returns when all subscribers have acked.
func newBroker(t *testing.T) *gochannel.GoChannel {
	broker := gochannel.NewGoChannel(gochannel.Config{BlockPublishUntilSubscriberAck: true}, nil)
	t.Cleanup(func() { _ = broker.Close() })
	return broker
}

const ordersTopic = "orders"

// publish publishes on a goroutine of its own; the end is the ack.
func publish(broker *gochannel.GoChannel, msg *message.Message) *inHand {
	d := &inHand{done: make(chan struct{})}
	go func() {
		defer close(d.done)
		d.err = broker.Publish(ordersTopic, msg)
	}()
	return d
}

// twice delivers every message as two copies at the same time.
func twice(t *testing.T, sub message.Subscriber) message.Subscriber {
	t.Helper()
	doubled, err := inboxtest.NewDuplicateSubscriber(sub, inboxtest.DuplicateSubscriberConfig{Concurrent: true})
	require.NoError(t, err)
	return doubled
}

// consume makes a handler one that publishes nothing.
func consume(handler message.HandlerFunc) message.NoPublishHandlerFunc {
	return func(msg *message.Message) error {
		_, err := handler(msg)
		return err
	}
}

// inDocumentedOrder adds the middlewares as the package documentation says.
func inDocumentedOrder(t *testing.T, router *message.Router, poison message.Publisher, in *inbox.Inbox) {
	t.Helper()
	salvage, err := middleware.PoisonQueueWithFilter(poison, "poison", func(err error) bool { return !inbox.IsTransient(err) })
	require.NoError(t, err)
	router.AddMiddleware(
		salvage,
		middleware.Retry{
			MaxRetries: 2, InitialInterval: time.Millisecond, Multiplier: 1, ResetContextOnRetry: true,
			ShouldRetry: func(p middleware.RetryParams) bool { return !inbox.IsPermanent(p.Err) },
		}.Middleware,
		middleware.Timeout(patience),
		middleware.Recoverer,
		in.Middleware,
	)
}

// a3 delivers two copies at the same time through a router, which acks and logs: to one subscriber, and to those of two
// processes.
func (s *suite) a3(t *testing.T) {
	s.inBothPlaces(t, Options{}, inbox.Config{}, func(t *testing.T, r, elsewhere *rig) {
		broker := newBroker(t)
		stop := newGate(t)
		subscribe := func(in *rig, sub message.Subscriber) {
			r.route(t, func(router *message.Router) {
				router.AddMiddleware(in.Middleware)
				router.AddConsumerHandler(consumer, ordersTopic, sub, consume(stop.after(in.writes("pay"))))
			})
		}
		if r == elsewhere {
			subscribe(r, twice(t, broker))
		} else {
			subscribe(r, broker)
			subscribe(elsewhere, broker)
		}
		both := publish(broker, newMessage("pay 10"))
		stop.wait(t)
		stop.open()
		require.NoError(t, both.end(t), "both copies are acked")

		r.processedOnce(t)
		r.told(t, map[inbox.Outcome]int{inbox.OutcomeProcessed: 1, inbox.OutcomeDuplicate: 1})
		require.Empty(t, r.logs.at("ERROR"))
	})
}

// a8Poison has an id used again for another payload behind the documented middlewares.
func (s *suite) a8Poison(t *testing.T) {
	r := newRouterRig(t, s.open(t, Options{}))
	broker := newBroker(t)
	poison := &poison{}
	r.route(t, func(router *message.Router) {
		inDocumentedOrder(t, router, poison, r.Inbox)
		router.AddConsumerHandler(consumer, ordersTopic, broker, consume(r.writes("pay")))
	})
	right, wrong := newMessage("pay 10"), newMessage("pay 20")
	wrong.UUID = right.UUID
	for _, msg := range []*message.Message{right, wrong, right.Copy()} {
		require.NoError(t, publish(broker, msg).end(t))
	}
	require.Len(t, poison.messages, 1)
	require.Equal(t, "pay 20", string(poison.messages[0].Payload))
	require.Contains(t, poison.messages[0].Metadata.Get(middleware.ReasonForPoisonedKey), inbox.ErrMismatch.Error())
	r.processedOnce(t)
	r.told(t, map[inbox.Outcome]int{inbox.OutcomeProcessed: 1, inbox.OutcomeMismatch: 1, inbox.OutcomeDuplicate: 1}) // not retried
}

// a10 has the first copy killed inside its handler, in another process, while the second one, here, runs out of its
// waiting time and its retries again and again.
func (s *suite) a10(t *testing.T) {
	r := newRouterRig(t, s.open(t, Options{Config: sqlinbox.Config{InFlightWait: 20 * time.Millisecond}}))
	msg := newMessage("pay 10")
	child := s.startChild(t, r.Env, task{Name: "a10", Args: map[string]string{"id": msg.UUID}}, "in the handler")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	require.NoError(t, child.WaitPoint(ctx))

	broker := newBroker(t)
	poison := &poison{}
	r.route(t, func(router *message.Router) {
		inDocumentedOrder(t, router, poison, r.Inbox)
		router.AddConsumerHandler(consumer, ordersTopic, broker, consume(r.writes("pay")))
	})
	second := publish(broker, msg)
	const deliveries, attempts = 3, 3 // of the broker; of Retry in each
	require.Eventually(t, func() bool {
		return r.events.count(inbox.OutcomeInFlight) > (deliveries-1)*attempts || second.ended()
	}, patience, time.Millisecond, "the second copy stays in flight")
	require.NoError(t, child.Kill())
	require.NoError(t, second.end(t))

	require.Empty(t, poison.all())
	r.processedOnce(t)
	for _, event := range r.events.all() {
		require.Contains(t, []inbox.Outcome{inbox.OutcomeInFlight, inbox.OutcomeProcessed}, event.Outcome, fmt.Sprint(event.Err))
	}
}

// a10Child is the process of the first copy.
func (s *suite) a10Child(t *testing.T, this task) {
	r := s.rig(t, Options{Space: this.Space}, inbox.Config{})
	msg := newMessage("pay 10")
	msg.UUID = this.Args["id"]
	_ = r.handle(msg, func(msg *message.Message) ([]*message.Message, error) {
		if err := r.Write(msg.Context(), "pay"); err != nil {
			return nil, err
		}
		inboxtest.Point("in the handler")
		return nil, nil
	})
}

// a11 has two handlers with different names, of two routers on two brokers, that are one consumer.
func (s *suite) a11(t *testing.T) {
	r := newRouterRig(t, s.open(t, Options{}))
	brokers := []*gochannel.GoChannel{newBroker(t), newBroker(t)}
	for n, broker := range brokers {
		r.route(t, func(router *message.Router) {
			name := fmt.Sprint("charge of broker ", n)
			handler := func(msg *message.Message) ([]*message.Message, error) { return nil, r.Write(msg.Context(), msg.UUID) }
			router.AddConsumerHandler(name, ordersTopic, twice(t, broker), consume(handler)).AddMiddleware(r.As("charge"))
		})
	}
	const messages = 20
	for range messages {
		msg := newMessage("pay 10")
		one, other := publish(brokers[0], msg.Copy()), publish(brokers[1], msg.Copy())
		require.NoError(t, one.end(t))
		require.NoError(t, other.end(t))
		require.Equal(t, 1, r.Count(t, msg.UUID))
	}
	require.Equal(t, messages, r.Rows(t))
	require.Equal(t, messages, r.Total(t))
	r.told(t, map[inbox.Outcome]int{inbox.OutcomeProcessed: messages, inbox.OutcomeDuplicate: 3 * messages})
	require.Empty(t, r.logs.at("ERROR"))
}
