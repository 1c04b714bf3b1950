package inbox_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	inbox "github.com/watermill-contrib/watermill-inbox"
)

func TestLeaseFromContext(t *testing.T) {
	t.Parallel()
	got, ok := inbox.LeaseFromContext(t.Context())
	require.False(t, ok)
	require.Nil(t, got)
	lease := newFakeLease(nil, inbox.Delivery{})
	ctx, cancel := context.WithCancel(inbox.WithLease(t.Context(), lease))
	cancel()
	got, ok = inbox.LeaseFromContext(ctx)
	require.True(t, ok)
	require.Same(t, lease, got)
}

// A message that was made with the context of a leased one is not leased: it is identified, claimed and handled by itself.
func TestTheContextOfALeaseInAnotherMessage(t *testing.T) {
	t.Parallel()
	store := newFakeStore()
	in := mustNew(t, store, inbox.Config{Consumer: func(*message.Message) string { return "mail" }})
	lease := newFakeLease(store, inbox.Delivery{Key: inbox.Key{Consumer: "charge", ID: "42"}})
	leased := leasedMessage(t.Context(), lease, "42")
	other := message.NewMessageWithContext(context.WithoutCancel(leased.Context()), "receipt", nil)
	handled := false
	_, err := in.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		handled = true
		_, err := inbox.StepBytes(msg.Context(), "call", func(context.Context) ([]byte, error) { return nil, nil })
		require.ErrorIs(t, err, inbox.ErrNotLeased)
		return nil, nil
	})(other)
	require.NoError(t, err)
	require.True(t, handled)
	require.Zero(t, lease.calls.Load())

	retried := 0
	_, _ = inbox.Unleased(func(next message.HandlerFunc) message.HandlerFunc {
		retried++
		return next
	})(func(*message.Message) ([]*message.Message, error) { return nil, nil })(other)
	require.Equal(t, 1, retried)
}

func TestALeasedMessageIsHandledByItsLease(t *testing.T) {
	t.Parallel()
	store, seen := newFakeStore(), &events{}
	never := func() { t.Error("a leased message is never identified again") }
	in := mustNew(t, store, inbox.Config{
		Namespace:   "billing",
		Observer:    seen.observe,
		Consumer:    func(*message.Message) string { never(); return "" },
		Identity:    func(*message.Message) (string, string, error) { never(); return "", "", nil },
		Fingerprint: func(*message.Message) []byte { never(); return nil },
		MessageTime: func(*message.Message) time.Time { never(); return time.Time{} },
		KeyTime:     func(*message.Message) time.Time { never(); return time.Time{} },
		OrderKey:    func(*message.Message) string { never(); return "" },
		Claims:      func(*message.Message, inbox.Key) (inbox.Operation, bool) { never(); return inbox.Operation{}, false },
	})
	d := inbox.Delivery{
		Key: inbox.Key{Consumer: "billing/old_name", Source: "shop", ID: "order-42"}, Topic: "orders",
		Fingerprint: inbox.Fingerprint{1}, Attempt: 3,
	}
	lease := newFakeLease(store, d)
	msg := leasedMessage(routed(t, "charge", "queue"), lease, "42")
	_, err := in.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		require.Equal(t, 1, tx(msg.Context()))
		key, ok := inbox.KeyFromContext(msg.Context())
		require.True(t, ok)
		require.Equal(t, d.Key, key)
		return nil, nil
	})(msg)
	require.NoError(t, err)
	require.Zero(t, store.calls.Load(), "the inbox's own store is not asked")
	want := d
	want.Handler, want.Record = "charge", true
	require.Equal(t, want, lease.only(t))
	event := seen.only(t)
	require.Equal(t, inbox.OutcomeProcessed, event.Outcome)
	require.Equal(t, 3, event.Attempt)
	require.Equal(t, d.Key, event.Key)
	require.Equal(t, "charge", event.Handler)
	require.Equal(t, "orders", event.Topic, "where the broker had it")
}

func TestAFailedAttemptOfALeasedMessage(t *testing.T) {
	t.Parallel()
	store, seen := newFakeStore(), &events{}
	lease := newFakeLease(store, inbox.Delivery{Key: inbox.Key{Consumer: "charge", ID: "42"}, Attempt: 2})
	mine := errors.New("mine")
	_, err := mustNew(t, store, inbox.Config{Observer: seen.observe}).Middleware(func(*message.Message) ([]*message.Message, error) {
		return nil, mine
	})(leasedMessage(t.Context(), lease, "42"))
	require.ErrorIs(t, err, mine)
	requirePhase(t, inbox.PhaseHandle, err)
	require.Equal(t, inbox.OutcomeFailed, seen.only(t).Outcome)
	require.Equal(t, 2, seen.only(t).Attempt)
}

// The queue of another store is a Pub/Sub like any other: its messages are remembered here.
func TestALeaseOfAnotherStoreIsAnOrdinaryMessage(t *testing.T) {
	t.Parallel()
	store, seen := newFakeStore(), &events{}
	lease := newFakeLease(newFakeStore(), inbox.Delivery{Key: inbox.Key{Consumer: "theirs", ID: "theirs"}, Attempt: 3})
	_, err := mustNew(t, store, inbox.Config{Observer: seen.observe}).As("charge")(nothing)(leasedMessage(t.Context(), lease, "42"))
	require.NoError(t, err)
	require.Zero(t, lease.calls.Load())
	require.Equal(t, inbox.Key{Consumer: "charge", ID: "42"}, store.only(t).Key)
	require.Zero(t, seen.only(t).Attempt)
}

func TestALeasedMessageInsideAnOpenTransaction(t *testing.T) {
	t.Parallel()
	store := newFakeStore()
	in := mustNew(t, store, inbox.Config{})
	lease := newFakeLease(store, inbox.Delivery{Key: inbox.Key{Consumer: "charge", ID: "1"}})
	ran := false
	_, err := in.As("outer")(func(msg *message.Message) ([]*message.Message, error) {
		return in.Middleware(func(*message.Message) ([]*message.Message, error) { ran = true; return nil, nil })(
			leasedMessage(msg.Context(), lease, "1"))
	})(message.NewMessage("42", nil))
	require.ErrorIs(t, err, inbox.ErrNested)
	require.False(t, ran)
	require.Zero(t, lease.calls.Load())
}

func TestUnleased(t *testing.T) {
	t.Parallel()
	around := 0
	wrapped := inbox.Unleased(func(next message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			around++
			return next(msg)
		}
	})
	ran := 0
	handler := wrapped(func(*message.Message) ([]*message.Message, error) { ran++; return nil, nil })
	_, err := handler(message.NewMessage("1", nil))
	require.NoError(t, err)
	require.Equal(t, 1, around)
	_, err = handler(leasedMessage(t.Context(), newFakeLease(nil, inbox.Delivery{}), "2"))
	require.NoError(t, err)
	require.Equal(t, 1, around, "a leased message passes by")
	require.Equal(t, 2, ran)
}

// The queue knows of the ack itself: nothing waits for it, whatever store the lease is of.
func TestProducedMessagesOfALeaseAreNotWatched(t *testing.T) {
	t.Parallel()
	store := &ackedQueueStore{fakeStore: newFakeStore()}
	lease := newFakeLease(store, inbox.Delivery{Key: inbox.Key{Consumer: "charge", ID: "42"}})
	msg := leasedMessage(routed(t, "charge", "queue"), lease, "42")
	produced, err := mustNew(t, store, inbox.Config{}).Middleware(func(*message.Message) ([]*message.Message, error) {
		return []*message.Message{message.NewMessage("receipt", nil)}, nil
	})(msg)
	require.NoError(t, err)
	require.Len(t, produced, 1)
	msg.Ack()
	require.Never(t, func() bool { return store.acks.Load() > 0 }, 50*time.Millisecond, 10*time.Millisecond)
}
