package tests

import (
	"bytes"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/stretchr/testify/require"

	inbox "github.com/watermill-contrib/watermill-inbox"
)

// closings are the cases about a router that closes, or waits, around a handler.
func (s *suite) closings() []testCase {
	return []testCase{
		{"B6_CloseWithGrace", s.b6Grace},
		{"B6_CloseAfterGrace", s.b6Interrupted(100*time.Millisecond, true, func(msg *message.Message) error {
			<-msg.Context().Done()
			return msg.Context().Err()
		})},
		{"B6_CloseWithoutGrace", s.b6Interrupted(0, true, func(msg *message.Message) error {
			<-msg.Context().Done()
			return msg.Context().Err()
		})},
		{"B6_CloseAndTheHandlersOwnError", s.b6Interrupted(0, false, func(msg *message.Message) error {
			<-msg.Context().Done()
			return errHandler
		})},
		{"B6_CloseWhileWriting", s.b6WhileWriting},
		{"B6_CloseWhileWaitingForAConnection", s.b6WhileWaiting(1, newMessage)},
		{"B6_CloseWhileWaitingForACopy", s.b6WhileWaiting(4, nil)},
		{"B8_NoTransactionDuringBackOff", s.b8},
		{"B8_RetryAfterTheMessageWasSpoilt", s.b8Spoilt},
	}
}

// b6Grace closes the router under a handler that goes on with its work in the grace time.
func (s *suite) b6Grace(t *testing.T) {
	r := s.rig(t, Options{}, inbox.Config{Grace: 2 * patience})
	h := &host{}
	entered := make(chan struct{})
	startHost(t, r, h, r.writesThen("pay", func(msg *message.Message) error {
		close(entered)
		untilCancelled(msg.Context()) // the router closes
		return r.Write(msg.Context(), "receipt")
	}), h.documentedOrder(t)...)
	msg := newMessage("pay 10")
	h.publish(t, msg)
	within(t, patience, "the handler", func() { <-entered })
	require.NoError(t, h.Close())

	require.True(t, isClosed(h.delivery(0).Acked()))
	require.Equal(t, 1, r.events.count(inbox.OutcomeProcessed))
	require.Equal(t, 1, r.Count(t, "receipt"), "the work after the close is part of it")
	r.requireOnce(t)
	h.requireQuiet(t)
	require.Empty(t, r.logs.at("ERROR"))
}

// b6Interrupted closes the router under a handler that gives up when it is told to: rolled back, nacked, and handled
// by the next program.
func (s *suite) b6Interrupted(grace time.Duration, retried bool, f func(*message.Message) error) func(*testing.T) {
	return func(t *testing.T) {
		r := s.rig(t, Options{}, inbox.Config{Grace: grace})
		h := &host{}
		outer := h.documentedOrder(t)
		if !retried { // a Retry middleware gives the context's error back instead of the handler's
			outer = outer[:1]
		}
		entered := make(chan struct{})
		startHost(t, r, h, r.writesThen("pay", func(msg *message.Message) error {
			close(entered)
			return f(msg)
		}), outer...)
		msg := newMessage("pay 10")
		h.publish(t, msg)
		within(t, patience, "the handler", func() { <-entered })
		require.NoError(t, h.Close(), "the handler is told to stop")

		require.True(t, isClosed(h.delivery(0).Nacked()))
		// The broker delivers it again until it is closed itself; its context has ended by then, and nothing begins. (The
		// handler is called once: its second close would panic.)
		require.Positive(t, r.events.count(inbox.OutcomeFailed))
		require.NotErrorIs(t, r.events.all()[0].Err, inbox.ErrUnavailable, "the connection does not die with the context")
		r.requireNothing(t)
		h.requireQuiet(t)
		require.Empty(t, r.logs.at("ERROR"))

		require.NoError(t, r.handle(msg.Copy(), r.writes("pay")))
		r.requireOnce(t)
	}
}

// b6WhileWriting closes the router under a handler that does not look at its context but passes it to the database.
func (s *suite) b6WhileWriting(t *testing.T) {
	r := s.rig(t, Options{}, inbox.Config{})
	h := &host{}
	entered := make(chan struct{})
	startHost(t, r, h, r.writesThen("pay", func(msg *message.Message) error {
		close(entered)
		for {
			if err := r.Write(msg.Context(), "pay"); err != nil {
				return err
			}
		}
	}), h.documentedOrder(t)...)
	msg := newMessage("pay 10")
	h.publish(t, msg)
	within(t, patience, "the handler", func() { <-entered })
	require.NoError(t, h.Close())

	require.True(t, isClosed(h.delivery(0).Nacked()))
	require.Equal(t, 1, r.events.count(inbox.OutcomeFailed))
	r.requireNothing(t)
	h.requireQuiet(t)

	require.NoError(t, r.handleWithin(t, msg.Copy(), r.writes("pay")))
	r.requireOnce(t)
}

// b6WhileWaiting closes the router while one message is handled, in the grace time, and a second one waits to be: for a
// connection, or for the first as its copy. The grace is for handlers; who waits gives up at once.
func (s *suite) b6WhileWaiting(poolSize int, another func(string) *message.Message) func(*testing.T) {
	return func(t *testing.T) {
		r := s.rig(t, Options{PoolSize: poolSize}, inbox.Config{Grace: 2 * patience})
		h := &host{}
		entered, second := make(chan struct{}), make(chan *message.Message, 1)
		startHost(t, r, h, r.writesThen("pay", func(*message.Message) error {
			close(entered)
			waiting := <-second
			<-waiting.Nacked()
			return nil
		}), h.documentedOrder(t)...)
		msg := newMessage("pay 10")
		h.publish(t, msg)
		within(t, patience, "the handler", func() { <-entered })
		if another != nil {
			msg = another("pay 20")
		}
		h.publish(t, msg)
		require.Eventually(t, func() bool { return h.count() == 2 }, patience, time.Millisecond, "the second delivery")
		second <- h.delivery(1)
		require.NoError(t, h.Close())

		require.True(t, isClosed(h.delivery(0).Acked()))
		require.True(t, isClosed(h.delivery(1).Nacked()))
		r.requireOnce(t)
		h.requireQuiet(t)
		require.Empty(t, r.logs.at("ERROR"))
	}
}

// b8 looks at the pool and at the database each time a Retry middleware is about to wait.
func (s *suite) b8(t *testing.T) {
	r := s.rig(t, Options{}, inbox.Config{})
	waits := 0
	look := func() {
		waits++
		require.Equal(t, 0, r.InUse(), "before the wait")
		r.requireNothing(t)
	}
	retry := middleware.Retry{
		MaxRetries: 3, InitialInterval: time.Millisecond, ResetContextOnRetry: true,
		ShouldRetry: func(p middleware.RetryParams) bool {
			look()
			return !inbox.IsPermanent(p.Err)
		},
		OnRetryHook: func(int, time.Duration) { look() },
	}
	attempts := 0
	handler := retry.Middleware(middleware.Recoverer(r.Middleware(r.writesThen("pay", func(*message.Message) error {
		attempts++
		switch attempts {
		case 1, 2:
			return errHandler
		case 3:
			panic("index out of range")
		}
		return nil
	}))))
	_, err := handler(newMessage("pay 10"))
	require.NoError(t, err)
	require.Equal(t, 4, attempts)
	require.Equal(t, 3+2, waits, "ShouldRetry before each retry, OnRetryHook before each but the first")
	r.requireOnce(t)
}

// b8Spoilt has a handler that changes its message before it fails, or panics: the next attempt gets it as it arrived,
// and it is remembered so.
func (s *suite) b8Spoilt(t *testing.T) {
	r := s.rig(t, Options{}, inbox.Config{})
	retry := middleware.Retry{MaxRetries: 3, InitialInterval: time.Millisecond, ResetContextOnRetry: true}
	seen := []string{}
	handler := retry.Middleware(middleware.Recoverer(r.Middleware(r.writesThen("pay", func(msg *message.Message) error {
		seen = append(seen, string(msg.Payload))
		msg.Payload[0] = 'P'
		switch len(seen) {
		case 1:
			return errHandler
		case 2:
			panic("index out of range")
		}
		return nil
	}))))
	msg := newMessage("pay 10")
	delivered := msg.Copy()
	delivered.Payload = bytes.Clone(msg.Payload)
	_, err := handler(delivered)
	require.NoError(t, err)
	require.Equal(t, []string{"pay 10", "pay 10", "pay 10"}, seen)

	require.NoError(t, r.handle(msg, r.writes("pay")), "remembered for what it was")
	r.requireOnce(t)
}
