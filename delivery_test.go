package inbox_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	inbox "github.com/watermill-contrib/watermill-inbox"
)

// A store may run the work again after a serialization failure: the second run must see what the first one saw.
func TestARetriedTransactionMeetsTheMessageAsItArrived(t *testing.T) {
	t.Parallel()
	store := newFakeStore()
	store.attempts = 3
	own := context.WithValue(t.Context(), ctxKey("mine"), "value")
	msg := message.NewMessageWithContext(own, "42", []byte("payload"))
	msg.Metadata.Set("kept", "1")
	var numbers []int
	_, err := mustNew(t, store, inbox.Config{}).As("c")(func(msg *message.Message) ([]*message.Message, error) {
		numbers = append(numbers, tx(msg.Context()))
		require.Equal(t, "42", msg.UUID)
		require.Equal(t, "payload", string(msg.Payload))
		require.Equal(t, message.Metadata{"kept": "1"}, msg.Metadata)
		require.Equal(t, "value", msg.Context().Value(ctxKey("mine")))
		require.Nil(t, msg.Context().Value(ctxKey("attempt")))

		msg.Payload[0] = 'X' // in place
		msg.Payload = append(msg.Payload, "..."...)
		msg.UUID = "43"
		msg.Metadata.Set("kept", "2")
		msg.Metadata.Set("added", "3")
		msg.SetContext(context.WithValue(msg.Context(), ctxKey("attempt"), true))
		return nil, nil
	})(msg)
	require.NoError(t, err)
	require.Equal(t, []int{1, 2, 3}, numbers, "each run has a transaction of its own")
	require.Equal(t, own, msg.Context())
}

func TestARetriedTransactionMeetsNilAsItArrived(t *testing.T) {
	t.Parallel()
	store := newFakeStore()
	store.attempts = 2
	_, err := mustNew(t, store, inbox.Config{}).As("c")(func(msg *message.Message) ([]*message.Message, error) {
		require.Nil(t, msg.Payload)
		require.Nil(t, msg.Metadata)
		msg.Payload, msg.Metadata = []byte("x"), message.Metadata{"x": "x"}
		return nil, nil
	})(&message.Message{UUID: "42"})
	require.NoError(t, err)
}

func TestTheContextIsAlwaysRestored(t *testing.T) {
	t.Parallel()
	for name, end := range ends() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := newFakeStore()
			own, cancel := context.WithCancel(t.Context())
			defer cancel()
			msg := message.NewMessageWithContext(own, "42", nil)
			mw := mustNew(t, store, inbox.Config{}).As("c")(func(msg *message.Message) ([]*message.Message, error) {
				require.NotEqual(t, own, msg.Context())
				msg.SetContext(context.WithValue(msg.Context(), ctxKey("left"), true))
				return nil, end()
			})
			panicked := apart(func() { _, _ = mw(msg) })
			require.Equal(t, own, msg.Context())
			require.Equal(t, strings.HasPrefix(name, "panic"), panicked != nil, "a panic goes on")
			require.Zero(t, store.open())
		})
	}

	t.Run("duplicate", func(t *testing.T) {
		t.Parallel()
		mw := mustNew(t, newFakeStore(), inbox.Config{}).As("c")(nothing)
		for range 2 {
			msg := message.NewMessageWithContext(t.Context(), "42", nil)
			_, err := mw(msg)
			require.NoError(t, err)
			require.Equal(t, t.Context(), msg.Context())
		}
	})
}

// A Retry around the inbox comes back with the same message. If the handler's changes stayed in it, the second attempt
// would be about another message: where the first commit did happen and only its reply was lost, the copy would be
// refused as a mismatch instead of skipped.
func TestAFailedDeliveryLeavesTheMessageAsItArrived(t *testing.T) {
	t.Parallel()
	failing := ends()
	delete(failing, "processed")
	failing["commit failed"] = func() error { return nil }
	failing["commit unknown"] = func() error { return nil }
	for name, end := range failing {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for field, change := range map[string]func(msg *message.Message){
				"payload in place": func(msg *message.Message) { msg.Payload[0] = 'X' },
				"payload":          func(msg *message.Message) { msg.Payload = []byte("other") },
				"UUID":             func(msg *message.Message) { msg.UUID = "43" },
				"metadata":         func(msg *message.Message) { msg.Metadata.Set("event_id", "43") },
				"metadata deleted": func(msg *message.Message) { delete(msg.Metadata, "event_id") },
				"metadata lost":    func(msg *message.Message) { msg.Metadata = nil },
			} {
				t.Run(field, func(t *testing.T) {
					t.Parallel()
					store, end := newFakeStore(), end
					switch name {
					case "commit failed":
						store.commit = func() (bool, error) { return false, errors.New("deferred constraint") }
					case "commit unknown":
						store.commit = func() (bool, error) { return true, inbox.ErrCommitUnknown }
					}
					config := inbox.Config{}
					if strings.HasPrefix(field, "metadata") {
						config.Identity = inbox.ByMetadata("event_id")
					}
					msg := message.NewMessage("42", []byte("payload"))
					msg.Metadata.Set("event_id", "42")
					mw := mustNew(t, store, config).As("c")(func(msg *message.Message) ([]*message.Message, error) {
						change(msg)
						return nil, end()
					})
					apart(func() {
						_, err := mw(msg)
						require.Error(t, err)
					})
					require.Equal(t, "payload", string(msg.Payload))
					require.Equal(t, "42", msg.UUID)
					require.Equal(t, "42", msg.Metadata.Get("event_id"))

					store.commit, end = nil, func() error { return nil }
					_, err := mw(msg) // as Retry does it
					require.NoError(t, err)
					require.Equal(t, store.deliveries()[0], store.deliveries()[1])
				})
			}
		})
	}
}

func TestMetadataOfAFailedDeliveryIsKeptForThePoisonQueue(t *testing.T) {
	t.Parallel()
	msg := message.NewMessage("42", nil)
	_, err := mustNew(t, newFakeStore(), inbox.Config{}).As("c")(func(msg *message.Message) ([]*message.Message, error) {
		msg.Metadata.Set("reason", "declined")
		return nil, errors.New("mine")
	})(msg)
	require.Error(t, err)
	require.Equal(t, "declined", msg.Metadata.Get("reason"))
}

func TestProducedMessages(t *testing.T) {
	t.Parallel()
	store := newFakeStore()
	in := mustNew(t, store, inbox.Config{})
	produced := []*message.Message{message.NewMessage("1", nil), message.NewMessage("2", nil)}

	got, err := in.As("c")(func(*message.Message) ([]*message.Message, error) { return produced, nil })(message.NewMessage("42", nil))
	require.NoError(t, err)
	require.Equal(t, produced, got)

	got, err = in.As("c")(func(*message.Message) ([]*message.Message, error) {
		return produced, errors.New("mine")
	})(message.NewMessage("43", nil))
	require.Error(t, err)
	require.Nil(t, got, "nothing of a failed handler is published")
}
