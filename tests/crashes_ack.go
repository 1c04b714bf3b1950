package tests

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/stretchr/testify/require"

	inbox "github.com/watermill-contrib/watermill-inbox"
)

// earlyAcks are the cases about messages that are acked before their work is committed: by InstantAck, or by the
// handler. The subscriber, a gochannel, cancels a message's context as soon as it sees the ack.
func (s *suite) earlyAcks() []testCase {
	return []testCase{
		{"B9_InstantAck", s.b9(true)},
		{"B9_AckInTheHandler", s.b9(false)},
		{"B9_InstantAckAndTheHandlerFails", s.b9Lost(true)},
		{"B9_AckInTheHandlerThatFails", s.b9Lost(false)},
		{"B9_AckInTheHandlerThatPanics", s.b9Panic},
	}
}

// earlyAck is a router whose messages are acked early, and whose handler comes to f only when the subscriber has
// cancelled the message's context. done gets the id of each message whose middlewares have returned.
func (s *suite) earlyAck(t *testing.T, instant bool, f func(r *rig, msg *message.Message) error) (*rig, *host, <-chan string) {
	t.Helper()
	r := s.rig(t, Options{}, inbox.Config{})
	done := make(chan string, 10)
	signal := func(next message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			defer func() { done <- msg.UUID }()
			return next(msg)
		}
	}
	outer := []message.HandlerMiddleware{signal}
	if instant {
		outer = append(outer, middleware.InstantAck, func(next message.HandlerFunc) message.HandlerFunc {
			return func(msg *message.Message) ([]*message.Message, error) {
				untilCancelled(msg.Context()) // the inbox meets a context that is cancelled already
				return next(msg)
			}
		})
	}
	h := &host{}
	startHost(t, r, h, func(msg *message.Message) ([]*message.Message, error) {
		if !instant {
			if err := r.Write(msg.Context(), "begun"); err != nil {
				return nil, err
			}
			msg.Ack()
			untilCancelled(msg.Context())
		}
		return nil, f(r, msg)
	}, outer...)
	return r, h, done
}

func (s *suite) b9(instant bool) func(*testing.T) {
	return func(t *testing.T) {
		r, h, done := s.earlyAck(t, instant, func(r *rig, msg *message.Message) error {
			return r.Write(msg.Context(), "pay")
		})
		const messages = 3
		for range messages {
			msg := newMessage("pay 10")
			h.publish(t, msg)
			within(t, patience, "delivery", func() { <-done })
			// An early ack does not keep a broker from delivering it again.
			require.NoError(t, r.handle(msg.Copy(), r.writes("pay")))
		}
		require.NoError(t, h.Close())

		require.Equal(t, messages, r.events.count(inbox.OutcomeAckedEarly))
		require.Equal(t, messages, r.events.count(inbox.OutcomeDuplicate))
		require.Equal(t, messages, r.Count(t, "pay"), "committed once each, though the context was cancelled")
		require.Equal(t, messages, r.Rows(t))
		r.requireIdle(t)
		h.requireQuiet(t)
		lines := r.logs.at("ERROR")
		require.Len(t, lines, 1, "one ERROR line for the handler, not one for each message")
		require.Equal(t, consumer, lines[0].fields["handler_name"])
		require.Contains(t, lines[0].text, "Remove InstantAck or the handler's msg.Ack()", "the cure is named")
	}
}

func (s *suite) b9Lost(instant bool) func(*testing.T) {
	return func(t *testing.T) {
		r, h, done := s.earlyAck(t, instant, func(r *rig, msg *message.Message) error {
			if err := r.Write(msg.Context(), "pay"); err != nil {
				return err
			}
			return errHandler
		})
		h.publish(t, newMessage("pay 10"))
		within(t, patience, "delivery", func() { <-done })

		s.requireLost(t, r)
		require.ErrorIs(t, r.logs.at("ERROR")[0].err, errHandler)
	}
}

func (s *suite) b9Panic(t *testing.T) {
	r, h, done := s.earlyAck(t, false, func(*rig, *message.Message) error { panic("index out of range") })
	h.publish(t, newMessage("pay 10"))
	within(t, patience, "delivery", func() { <-done })
	s.requireLost(t, r)
}

// requireLost asserts that the one message was rolled back and that this is told as the loss that it is.
func (s *suite) requireLost(t *testing.T, r *rig) {
	t.Helper()
	require.Len(t, r.events.all(), 1)
	require.Equal(t, inbox.OutcomeLost, r.events.all()[0].Outcome)
	r.requireNothing(t)
	lines := r.logs.at("ERROR")
	require.Len(t, lines, 1)
	require.Equal(t, consumer, lines[0].fields["handler_name"])
	require.Contains(t, lines[0].text, "lost")
	require.Contains(t, lines[0].text, "Remove InstantAck or the handler's msg.Ack()", "the cure is named")
}
