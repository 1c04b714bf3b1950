package tests

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/stretchr/testify/require"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox"
)

// queuePublishing are the cases about what the handlers of queued messages produce, and about work for later.
func (s *suite) queuePublishing() []testCase {
	return []testCase{
		{"C1_QueuedMessagesPublishFails", s.queuedPublishFails},
		{"C1_QueuedMessageUnderARetry", s.queuedRetry},
		{"C1_QueuedMessageThatProducesNothing", s.queuedNothing},
		{"C3_WorkForLaterInATransaction", s.publisherInside},
		{"C3_WorkForLaterOutside", s.publisherOutside},
		{"C3_WorkForLaterOfAQueuedMessage", s.publisherLeased},
	}
}

// queuedPublishFails publishes again and again with the same UUIDs, and never gives the message up.
func (s *suite) queuedPublishFails(t *testing.T) {
	r := s.rig(t, Options{}, inbox.Config{})
	out := &flakyPublisher{failures: 5, published: make(chan struct{}, 16)}
	var calls starts
	handler := r.producing("pay", 3)
	msg := newMessage("pay")
	r.store(t, msg)
	w := r.work(t, workerConfig{publisher: out, SubscriberConfig: sqlinbox.SubscriberConfig{MaxAttempts: 1}}, func(msg *message.Message) ([]*message.Message, error) {
		calls.add(msg.UUID)
		return handler(msg)
	})
	r.finished(t, "pay", 1)
	require.NoError(t, w.Close())
	require.Equal(t, map[string]int{msg.UUID: 1}, calls.all())
	attempts := out.attempts()
	require.GreaterOrEqual(t, len(attempts), 6)
	for _, ids := range attempts {
		require.Subset(t, attempts[len(attempts)-1], ids, "the same UUIDs")
	}
	require.Equal(t, 0, r.recorded(t))
}

// queuedRetry has a Retry around the inbox, and in between something that fails after the inbox has committed: what was
// produced is not lost.
func (s *suite) queuedRetry(t *testing.T) {
	r := s.rig(t, Options{}, inbox.Config{})
	out := &flakyPublisher{published: make(chan struct{}, 16)}
	var after atomic.Int32
	fails := func(next message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			produced, err := next(msg)
			if err == nil && after.Add(1) == 1 {
				return nil, errHandler
			}
			return produced, err
		}
	}
	retry := middleware.Retry{MaxRetries: 2, InitialInterval: time.Millisecond}
	r.store(t, newMessage("pay"))
	r.work(t, workerConfig{publisher: out, outer: []message.HandlerMiddleware{retry.Middleware, fails}}, r.producing("pay", 2))
	r.finished(t, "pay", 1)
	require.Len(t, out.attempts(), 1)
	require.Len(t, out.attempts()[0], 2)
}

func (s *suite) queuedNothing(t *testing.T) {
	r := s.rig(t, Options{}, inbox.Config{})
	r.store(t, newMessage("pay"))
	r.work(t, workerConfig{publisher: &flakyPublisher{}}, r.writes("pay"))
	r.finished(t, "pay", 1)
}

// publisherInside puts work into the queue from a handler's transaction.
func (s *suite) publisherInside(t *testing.T) {
	r := s.rig(t, Options{}, inbox.Config{})
	publisher := r.queueStore(t).NewPublisher(sqlinbox.PublisherConfig{})
	later := newMessage("mail")
	hand := func(fail bool) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			out := later.Copy()
			out.SetContext(msg.Context())
			for range 2 { // twice is once
				if err := publisher.Publish("mail", out); err != nil {
					return nil, err
				}
			}
			if fail {
				return nil, errHandler
			}
			return nil, r.Write(msg.Context(), "pay")
		}
	}
	msg := newMessage("pay 10")
	require.ErrorIs(t, r.handle(msg.Copy(), hand(true)), errHandler)
	require.Equal(t, 0, r.queued(t), "rolled back with the handler")
	require.Equal(t, 0, r.Rows(t))

	started := make(chan time.Time, 1)
	slow := workerConfig{consumer: "mail", SubscriberConfig: sqlinbox.SubscriberConfig{PollInterval: time.Hour}}
	r.work(t, slow, func(msg *message.Message) ([]*message.Message, error) {
		started <- time.Now()
		return nil, r.Write(msg.Context(), "mail")
	})
	time.Sleep(100 * time.Millisecond) // the worker sleeps now, for an hour
	require.NoError(t, r.handle(msg.Copy(), hand(false)))
	within(t, patience, "the wake-up", func() { <-started })
	r.finished(t, "mail", 2)
	require.NoError(t, r.handle(newMessage("pay 20"), hand(false)), "known work is left out")
	require.Equal(t, 0, r.queued(t))
}

func (s *suite) publisherOutside(t *testing.T) {
	r := s.rig(t, Options{}, inbox.Config{})
	publisher := r.queueStore(t).NewPublisher(sqlinbox.PublisherConfig{})
	handled := make(chan struct{}, 8)
	r.work(t, workerConfig{SubscriberConfig: sqlinbox.SubscriberConfig{PollInterval: time.Hour}}, func(msg *message.Message) ([]*message.Message, error) {
		defer func() { handled <- struct{}{} }()
		return nil, r.Write(msg.Context(), string(msg.Payload))
	})
	msg := newMessage("pay")
	woken := false
	for try := 0; try < 3 && !woken; try++ { // a busy machine may need more than one
		time.Sleep(1500 * time.Millisecond) // the worker looks again in a second, and later and later
		require.NoError(t, publisher.Publish(consumer, newMessage("wake")))
		select {
		case <-handled:
			woken = true
		case <-time.After(600 * time.Millisecond):
			<-handled
		}
	}
	require.True(t, woken, "new messages wake the workers of this process")
	require.NoError(t, publisher.Publish(consumer, msg.Copy(), msg.Copy()))
	r.drained(t)
	require.Equal(t, 1, r.Count(t, "pay"))
	require.NoError(t, publisher.Publish(consumer, msg.Copy()))
	require.Equal(t, 0, r.queued(t))

	require.NoError(t, publisher.Publish(consumer))
	require.NoError(t, publisher.Publish(""), "nothing")
	require.ErrorIs(t, publisher.Publish("", msg.Copy()), inbox.ErrNoConsumer)
	require.ErrorIs(t, publisher.Publish(consumer, message.NewMessage("", nil)), inbox.ErrNoMessageID)
	wrong := message.NewMessage(inbox.NewUUID(), []byte("a"))
	other := message.NewMessage(wrong.UUID, []byte("b"))
	require.ErrorIs(t, publisher.Publish(consumer, wrong, other), inbox.ErrMismatch)
	require.Equal(t, 0, r.queued(t), "all or none")
}

// publisherLeased puts work into the queue from the handler of a queued message: it begins the completing transaction.
func (s *suite) publisherLeased(t *testing.T) {
	r := s.rig(t, Options{}, inbox.Config{})
	publisher := r.queueStore(t).NewPublisher(sqlinbox.PublisherConfig{})
	r.work(t, workerConfig{consumer: "mail"}, r.writes("mail"))
	r.work(t, workerConfig{}, func(msg *message.Message) ([]*message.Message, error) {
		out := newMessage("mail")
		out.SetContext(msg.Context())
		if err := publisher.Publish("mail", out); err != nil {
			return nil, err
		}
		if _, err := inbox.Step(msg.Context(), "late", func(context.Context) (int, error) { return 0, nil }); err == nil {
			t.Error("the transaction is open")
		}
		if attempt(msg) < 3 {
			return nil, errHandler
		}
		return nil, r.Write(msg.Context(), "pay")
	})
	r.store(t, newMessage("pay"))
	r.drained(t)
	require.Equal(t, 1, r.Count(t, "pay"))
	require.Equal(t, 1, r.Count(t, "mail"))
}
