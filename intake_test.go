package inbox_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	inbox "github.com/watermill-contrib/watermill-inbox"
)

func TestIntakeStoresForEachConsumer(t *testing.T) {
	t.Parallel()
	store, seen := newFakeQueueStore(), &events{}
	in := mustNew(t, store, inbox.Config{
		Namespace: "billing", Observer: seen.observe, Mismatch: inbox.MismatchReport,
		OrderKey: func(msg *message.Message) string { return msg.Metadata.Get("customer") },
	})
	msg := message.NewMessageWithContext(routed(t, "store_all", "orders"), "42", []byte("pay"))
	msg.Metadata.Set("customer", "alice")
	require.NoError(t, in.Intake("charge", "ship")(msg))

	require.Len(t, store.batches, 1, "one call, so that one transaction can do it")
	entries := store.entries()
	require.Len(t, entries, 2)
	for i, consumer := range []string{"billing/charge", "billing/ship"} {
		require.Equal(t, inbox.Key{Consumer: consumer, ID: "42"}, entries[i].Delivery.Key)
		require.Equal(t, "store_all", entries[i].Delivery.Handler)
		require.Equal(t, "orders", entries[i].Delivery.Topic)
		require.True(t, entries[i].Delivery.AcceptMismatch)
		require.NotZero(t, entries[i].Delivery.Fingerprint)
		require.Equal(t, "alice", entries[i].OrderKey)
		require.Same(t, msg, entries[i].Message)
	}
	require.Equal(t, []inbox.Outcome{inbox.OutcomeStored, inbox.OutcomeStored}, seen.outcomes())
	for i, event := range seen.all() {
		require.Equal(t, entries[i].Delivery.Key, event.Key)
		require.Equal(t, "store_all", event.Handler)
		require.Equal(t, "orders", event.Topic)
		require.Zero(t, event.Attempt)
		require.NoError(t, event.Err)
	}
	require.Zero(t, store.calls.Load(), "nothing is handled")
	require.False(t, acked(msg), "the ack is the router's")
}

func TestIntakeWithoutNamesHasTheNameOfItsHandler(t *testing.T) {
	t.Parallel()
	store := newFakeQueueStore()
	in := mustNew(t, store, inbox.Config{Namespace: "billing"})
	require.NoError(t, in.Intake()(message.NewMessageWithContext(routed(t, "charge", "orders"), "42", nil)))
	require.Equal(t, "billing/charge", store.entries()[0].Delivery.Key.Consumer)
	require.Empty(t, store.entries()[0].OrderKey)

	named := mustNew(t, store, inbox.Config{Consumer: func(*message.Message) string { return "mine" }})
	require.NoError(t, named.Intake()(message.NewMessage("43", nil)))
	require.Equal(t, "mine", store.entries()[1].Delivery.Key.Consumer)

	require.ErrorIs(t, mustNew(t, store, inbox.Config{}).Intake()(message.NewMessage("44", nil)), inbox.ErrNoConsumer)
	require.Len(t, store.entries(), 2)
}

func TestIntakeIdentifiesAsTheMiddlewareDoes(t *testing.T) {
	t.Parallel()
	made := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	config := inbox.Config{
		Identity:    inbox.ByMetadata("event_id"),
		Fingerprint: func(msg *message.Message) []byte { return []byte(msg.Metadata.Get("amount")) },
		MessageTime: func(*message.Message) time.Time { return made },
	}
	store := newFakeQueueStore()
	in := mustNew(t, store, config)
	msg := message.NewMessageWithContext(routed(t, "charge", "orders"), "uuid", []byte("pay"))
	msg.Metadata.Set("event_id", "e1")
	msg.Metadata.Set("amount", "100")
	require.NoError(t, in.Intake()(msg))
	_, err := in.Middleware(nothing)(msg)
	require.NoError(t, err)
	require.Equal(t, store.only(t), store.entries()[0].Delivery, "or a consumer could not be switched")
}

func TestIntakeRefusesMessagesWithoutAnIdentity(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		id   string
		want error
	}{
		"no id":    {"", inbox.ErrNoMessageID},
		"too long": {strings.Repeat("x", inbox.MaxIDLength+1), inbox.ErrMessageIDTooLong},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store, seen := newFakeQueueStore(), &events{}
			in := mustNew(t, store, inbox.Config{Observer: seen.observe})
			err := in.Intake("charge", "ship")(message.NewMessage(tt.id, nil))
			require.ErrorIs(t, err, tt.want)
			require.True(t, inbox.IsPermanent(err))
			requirePhase(t, inbox.PhaseIdentify, err)
			require.Empty(t, store.entries())
			require.Equal(t, []inbox.Outcome{inbox.OutcomeRefused}, seen.outcomes())
		})
	}
}

func TestIntakeTellsWhatBecameOfEachEntry(t *testing.T) {
	t.Parallel()
	failure := errors.New("the disk is full")
	answers := map[string]inbox.Stored{
		"new":       {Outcome: inbox.OutcomeStored},
		"queued":    {Outcome: inbox.OutcomeQueued},
		"handled":   {Outcome: inbox.OutcomeDuplicate},
		"changed":   {Outcome: inbox.OutcomeDuplicate, Mismatch: true},
		"failed":    {Err: failure},
		"mismatch":  {Err: inbox.ErrMismatch},
		"late":      {Err: inbox.ErrLate},
		"in flight": {Err: inbox.ErrInFlight},
	}
	want := map[string]inbox.Outcome{
		"new": inbox.OutcomeStored, "queued": inbox.OutcomeQueued, "handled": inbox.OutcomeDuplicate,
		"changed": inbox.OutcomeMismatch, "failed": inbox.OutcomeFailed, "mismatch": inbox.OutcomeMismatch,
		"late": inbox.OutcomeLate, "in flight": inbox.OutcomeInFlight,
	}
	for consumer, answer := range answers {
		t.Run(consumer, func(t *testing.T) {
			t.Parallel()
			store, seen := newFakeQueueStore(), &events{}
			store.answers = func(inbox.Entry) inbox.Stored { return answer }
			in := mustNew(t, store, inbox.Config{Observer: seen.observe})
			err := in.Intake(consumer)(message.NewMessage("42", nil))
			if answer.Err == nil {
				require.NoError(t, err)
			} else {
				require.ErrorIs(t, err, answer.Err)
			}
			event := seen.only(t)
			require.Equal(t, want[consumer], event.Outcome)
			require.Equal(t, answer.Err, event.Err)
		})
	}
}

// One consumer's failure nacks the message; the others are told of as they are, and the first error is the answer.
func TestIntakeGivesTheFirstError(t *testing.T) {
	t.Parallel()
	first, second := errors.New("first"), errors.New("second")
	store, seen := newFakeQueueStore(), &events{}
	store.answers = func(entry inbox.Entry) inbox.Stored {
		switch entry.Delivery.Key.Consumer {
		case "b":
			return inbox.Stored{Err: first}
		case "d":
			return inbox.Stored{Err: second}
		}
		return inbox.Stored{Outcome: inbox.OutcomeStored}
	}
	in := mustNew(t, store, inbox.Config{Observer: seen.observe})
	require.ErrorIs(t, in.Intake("a", "b", "c", "d")(message.NewMessage("42", nil)), first)
	require.Equal(t, []inbox.Outcome{
		inbox.OutcomeStored, inbox.OutcomeFailed, inbox.OutcomeStored, inbox.OutcomeFailed,
	}, seen.outcomes())
}

func TestIntakeNeedsAStoreWithAQueue(t *testing.T) {
	t.Parallel()
	store := newFakeStore()
	err := mustNew(t, store, inbox.Config{}).Intake("charge")(message.NewMessage("42", nil))
	require.ErrorIs(t, err, inbox.ErrNoQueue)
	require.True(t, inbox.IsTransient(err), "the message stays in the broker")
	requirePhase(t, inbox.PhaseStore, err)
	require.ErrorContains(t, err, "charge/42")
	require.Empty(t, store.keys())
}

func TestA12_AnIntakeInsideTheMiddleware(t *testing.T) {
	t.Parallel()
	store, seen := newFakeQueueStore(), &events{}
	in := mustNew(t, store, inbox.Config{Observer: seen.observe})
	intake := in.Intake("later")
	var inner error
	_, err := in.As("now")(func(msg *message.Message) ([]*message.Message, error) {
		inner = intake(msg)
		return nil, inner
	})(message.NewMessage("42", nil))
	require.ErrorIs(t, inner, inbox.ErrNested)
	require.ErrorContains(t, inner, "the outer message is now/42")
	require.ErrorIs(t, err, inbox.ErrNested)
	require.True(t, inbox.IsTransient(err))
	require.Empty(t, store.entries(), "not stored")
	require.Empty(t, store.keys(), "and not handled")

	// A message of its own, with a context of its own, is no part of that chain.
	require.NoError(t, intake(message.NewMessageWithContext(context.Background(), "43", nil)))
	require.Len(t, store.entries(), 1)
}
