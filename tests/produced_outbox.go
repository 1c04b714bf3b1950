package tests

import (
	"strconv"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	inbox "github.com/watermill-contrib/watermill-inbox"
)

func (s *suite) c3(t *testing.T) {
	env := s.open(t, Options{})
	r := newRig(t, env, inbox.Config{Outbox: env.Outbox})
	failing := r.producing("pay", 3)
	_, err := r.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		out, err := failing(msg)
		require.NoError(t, err)
		publisher, err := env.Outbox(msg.Context())
		require.NoError(t, err)
		require.NoError(t, publisher.Publish(topicOut, out...))
		return nil, errHandler
	})(inHandler(newMessage("fails"), consumer, topicOut))
	require.ErrorIs(t, err, errHandler)
	require.Empty(t, env.Outgoing(t), "a rollback leaves no outgoing row")

	msg := newMessage("pay 10")
	for range 2 {
		produced, err := r.Middleware(r.producing("pay", 5))(inHandler(msg.Copy(), consumer, topicOut))
		require.NoError(t, err)
		require.Empty(t, produced, "nothing is left for the router")
	}
	require.Equal(t, []string{"pay-0", "pay-1", "pay-2", "pay-3", "pay-4"}, env.Outgoing(t), "all of them, in order, once")
	require.Equal(t, 0, r.recorded(t))

	_, err = r.Middleware(r.producing("pay", 1))(inHandler(newMessage("pay 20"), consumer, ""))
	require.ErrorIs(t, err, inbox.ErrNoPublishTopic)
	require.Equal(t, 1, r.Count(t, "pay"))
}

func (s *suite) c3TxPublisher(t *testing.T) {
	env := s.open(t, Options{})
	r := newRig(t, env, inbox.Config{})
	fallback := &flakyPublisher{published: make(chan struct{}, 16)}
	strict, err := inbox.NewTxPublisher(env.Outbox, inbox.TxPublisherConfig{})
	require.NoError(t, err)
	lenient, err := inbox.NewTxPublisher(env.Outbox, inbox.TxPublisherConfig{Fallback: fallback})
	require.NoError(t, err)
	publish := func(fail error) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			for i, publisher := range []message.Publisher{strict, lenient} {
				out := newMessage("event-" + strconv.Itoa(i))
				out.SetContext(msg.Context())
				if err := publisher.Publish(topicOut, out); err != nil {
					return nil, err
				}
			}
			return nil, fail
		}
	}
	require.ErrorIs(t, r.handle(newMessage("1"), publish(errHandler)), errHandler)
	require.Empty(t, env.Outgoing(t))
	require.NoError(t, r.handle(newMessage("2"), publish(nil)))
	require.Equal(t, []string{"event-0", "event-1"}, env.Outgoing(t))

	require.ErrorIs(t, strict.Publish(topicOut, newMessage("outside")), inbox.ErrNoTx)
	require.NoError(t, lenient.Publish(topicOut, newMessage("outside")))
	require.Len(t, fallback.attempts(), 1)
	require.NoError(t, strict.Close())
	require.NoError(t, strict.Publish(topicOut))
}
