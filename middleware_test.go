package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/stretchr/testify/require"

	inbox "github.com/watermill-contrib/watermill-inbox"
)

func TestConsumerNaming(t *testing.T) {
	t.Parallel()
	inRouter := routed(t, "charge", "orders")
	for _, tt := range []struct {
		name   string
		ctx    context.Context
		config inbox.Config
		as     string
		want   string // empty: refused
	}{
		{name: "handler", ctx: inRouter, want: "charge"},
		{name: "namespace", ctx: inRouter, config: inbox.Config{Namespace: "billing"}, want: "billing/charge"},
		{name: "As", ctx: inRouter, as: "pay", want: "pay"},
		{name: "As with a namespace", ctx: inRouter, config: inbox.Config{Namespace: "billing"}, as: "pay", want: "billing/pay"},
		{name: "As without a router", ctx: t.Context(), config: inbox.Config{Namespace: "billing"}, as: "pay", want: "billing/pay"},
		{name: "Consumer", ctx: inRouter, config: inbox.Config{Consumer: byTenant}, want: "tenant-7"},
		{name: "Consumer names the whole", ctx: inRouter, config: inbox.Config{Namespace: "billing", Consumer: byTenant}, want: "tenant-7"},
		{name: "Consumer without a router", ctx: t.Context(), config: inbox.Config{Consumer: byTenant}, want: "tenant-7"},
		{name: "As before Consumer", ctx: inRouter, config: inbox.Config{Consumer: byTenant}, as: "pay", want: "pay"},
		{name: "empty As", ctx: inRouter, as: "", want: "charge"},
		{name: "no router", ctx: t.Context()},
		{name: "a namespace alone", ctx: t.Context(), config: inbox.Config{Namespace: "billing"}},
		{name: "Consumer without an answer", ctx: inRouter, config: inbox.Config{Consumer: func(*message.Message) string { return "" }}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			store := newFakeStore()
			in := mustNew(t, store, tt.config)
			mw := in.Middleware
			if tt.as != "" || tt.name == "empty As" {
				mw = in.As(tt.as)
			}
			msg := message.NewMessageWithContext(tt.ctx, "42", nil)
			msg.Metadata.Set("tenant", "tenant-7")
			_, err := mw(nothing)(msg)
			if tt.want == "" {
				require.ErrorIs(t, err, inbox.ErrNoConsumer)
				require.True(t, inbox.IsTransient(err), "the program is at fault, not the message")
				require.Zero(t, store.calls.Load())
				return
			}
			require.NoError(t, err)
			d := store.only(t)
			require.Equal(t, inbox.Key{Consumer: tt.want, ID: "42"}, d.Key)
			if tt.ctx == inRouter {
				require.Equal(t, "charge", d.Handler, "As and Consumer do not rename the handler")
				require.Equal(t, "orders", d.Topic)
			}
		})
	}
}

func byTenant(msg *message.Message) string { return msg.Metadata.Get("tenant") }

func TestFingerprint(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		config  inbox.Config
		payload string
		want    string // SHA-256, cut to 16 bytes, computed elsewhere
	}{
		{"payload", inbox.Config{}, `{"amount":10}`, "a8b88b82fe90a16048eb8851fe382405"},
		{"no payload", inbox.Config{}, "", "e3b0c44298fc1c149afbf4c8996fb924"},
		{"func", inbox.Config{Fingerprint: func(msg *message.Message) []byte {
			return []byte(msg.Metadata.Get("content"))
		}}, "another payload", "a8b88b82fe90a16048eb8851fe382405"},
		{"func without an answer", inbox.Config{Fingerprint: func(*message.Message) []byte { return nil }}, "x", "e3b0c44298fc1c149afbf4c8996fb924"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			store := newFakeStore()
			msg := message.NewMessage("42", []byte(tt.payload))
			msg.Metadata.Set("content", `{"amount":10}`)
			_, err := mustNew(t, store, tt.config).As("c")(nothing)(msg)
			require.NoError(t, err)
			require.Equal(t, tt.want, fmt.Sprintf("%x", store.only(t).Fingerprint))
		})
	}
}

func TestMessageTime(t *testing.T) {
	t.Parallel()
	const timed = "017f22e2-79b0-7cc3-98c4-dc0c0c07398f"
	inID := time.UnixMilli(1645557742000).UTC()
	other := time.Date(2020, 1, 2, 3, 4, 5, 6, time.UTC)
	for _, tt := range []struct {
		name, id string
		config   inbox.Config
		want     time.Time
	}{
		{"from the id", timed, inbox.Config{}, inID},
		{"unknown", "42", inbox.Config{}, time.Time{}},
		{"func", "42", inbox.Config{MessageTime: func(*message.Message) time.Time { return other }}, other},
		{"func before the id", timed, inbox.Config{MessageTime: func(*message.Message) time.Time { return other }}, other},
		{"func with a time beyond every database's", "42", inbox.Config{MessageTime: func(*message.Message) time.Time { return time.Unix(1<<40, 0) }}, time.Time{}},
		{"func with a time before every database's", "42", inbox.Config{MessageTime: func(*message.Message) time.Time { return time.Unix(-1<<40, 0) }}, time.Time{}},
		{"func that does not know", timed, inbox.Config{MessageTime: func(*message.Message) time.Time { return time.Time{} }}, time.Time{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			store, seen := newFakeStore(), &events{}
			tt.config.Observer = seen.observe
			_, err := mustNew(t, store, tt.config).As("c")(nothing)(message.NewMessage(tt.id, nil))
			require.NoError(t, err)
			d := store.only(t)
			require.Equal(t, tt.want, d.MessageTime)
			require.Equal(t, tt.want.IsZero(), seen.only(t).Unguarded)
			require.Equal(t, d.Key.Storage(), d.StorageKey(), "the message time is no part of the key")
		})
	}
}

func TestKeyTime(t *testing.T) {
	t.Parallel()
	at := time.UnixMilli(1700000000123)
	for _, tt := range []struct {
		name    string
		keyTime func(*message.Message) time.Time
		has     bool
		want    time.Time
	}{
		{"off", nil, false, time.Time{}},
		{"on", func(*message.Message) time.Time { return at }, true, at},
		{"on, without one for this message", func(*message.Message) time.Time { return time.Time{} }, true, time.Time{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			store := newFakeStore()
			_, err := mustNew(t, store, inbox.Config{KeyTime: tt.keyTime}).As("c")(nothing)(message.NewMessage("42", nil))
			require.NoError(t, err)
			d := store.only(t)
			require.Equal(t, tt.has, d.HasKeyTime)
			require.Equal(t, tt.want, d.KeyTime)
			require.Equal(t, d.Key.StorageAt(tt.want), d.StorageKey())
			require.True(t, d.MessageTime.IsZero(), "KeyTime does not feed the late guard")
		})
	}
}

func TestMessagesWithoutAUsableIDAreRefused(t *testing.T) {
	t.Parallel()
	longest, tooLong := strings.Repeat("x", inbox.MaxIDLength), strings.Repeat("x", inbox.MaxIDLength+1)
	own := errors.New("no such tenant")
	answer := func(source, id string, err error) inbox.Identity {
		return func(*message.Message) (string, string, error) { return source, id, err }
	}
	for _, tt := range []struct {
		name     string
		identity inbox.Identity
		as       string
		want     error // nil: accepted
		text     string
	}{
		{"no UUID", nil, "c", inbox.ErrNoMessageID, ""},
		{"empty id", answer("s", "", nil), "c", inbox.ErrNoMessageID, ""},
		{"the identity's own error", answer("", "", own), "c", inbox.ErrMessageIDRefused, "no such tenant"},
		{"an error beside an id", answer("s", "42", own), "c", inbox.ErrMessageIDRefused, "no such tenant"},
		{"a permanent error", answer("", "", fmt.Errorf("%w: nothing there", inbox.ErrNoMessageID)), "c", inbox.ErrNoMessageID, "nothing there"},
		{"longest", answer(longest, longest, nil), longest, nil, ""},
		{"id too long", answer("", tooLong, nil), "c", inbox.ErrMessageIDTooLong, "the id has 4097 bytes"},
		{"source too long", answer(tooLong, "42", nil), "c", inbox.ErrMessageIDTooLong, "the source has 4097 bytes"},
		{"consumer too long", answer("", "42", nil), tooLong, inbox.ErrMessageIDTooLong, "the consumer has 4097 bytes"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			store, seen := newFakeStore(), &events{}
			in := mustNew(t, store, inbox.Config{Identity: tt.identity, Observer: seen.observe})
			ran := 0
			handler := in.As(tt.as)(func(*message.Message) ([]*message.Message, error) { ran++; return nil, nil })
			for range 2 { // two of them are not copies of each other either
				msg := message.NewMessage("", []byte("x"))
				_, err := handler(msg)
				if tt.want == nil {
					require.NoError(t, err)
					continue
				}
				require.ErrorIs(t, err, tt.want)
				require.ErrorContains(t, err, tt.text)
				require.True(t, inbox.IsPermanent(err))
				requirePhase(t, inbox.PhaseIdentify, err)
				require.False(t, acked(msg))
			}
			if tt.want == nil {
				require.Equal(t, 1, ran)
				return
			}
			require.Zero(t, ran)
			require.Zero(t, store.calls.Load())
			require.Equal(t, []inbox.Outcome{inbox.OutcomeRefused, inbox.OutcomeRefused}, seen.outcomes())
			require.ErrorIs(t, seen.all()[0].Err, tt.want)
			if errors.Is(tt.want, inbox.ErrMessageIDRefused) {
				require.ErrorIs(t, seen.all()[0].Err, own)
			}
		})
	}
}

func TestI4_BypassedMessagesLeaveNoTrace(t *testing.T) {
	t.Parallel()
	store, seen, logger := newFakeStore(), &events{}, watermill.NewCaptureLogger()
	in := mustNew(t, store, inbox.Config{
		Bypass:   func(msg *message.Message) bool { return msg.Metadata.Get("kind") == "dull" },
		Observer: seen.observe,
		Logger:   logger,
	})
	ctx := routed(t, "charge", "orders")
	own := errors.New("mine")
	ran := 0
	handler := in.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		ran++
		require.Equal(t, ctx, msg.Context())
		return []*message.Message{msg}, own
	})
	for range 3 { // every time it arrives
		msg := message.NewMessageWithContext(ctx, "", nil)
		msg.Metadata.Set("kind", "dull")
		produced, err := handler(msg)
		require.Equal(t, own, err, "passed through as it is")
		require.Equal(t, []*message.Message{msg}, produced)
	}
	require.Equal(t, 3, ran)
	require.Zero(t, store.calls.Load())
	require.Empty(t, logger.Captured())
	require.Equal(t, slices.Repeat([]inbox.Outcome{inbox.OutcomeBypassed}, 3), seen.outcomes())
	require.Equal(t, "charge", seen.all()[0].Handler)
	require.Equal(t, "orders", seen.all()[0].Topic)
}

// Event.Err is what the middleware returned, and the Observer is told after the fact: for bypassed messages as well.
func TestBypassIsObservedAfterTheFact(t *testing.T) {
	t.Parallel()
	own := errors.New("mine")
	seen := &events{}
	in := mustNew(t, newFakeStore(), inbox.Config{
		Bypass:   func(*message.Message) bool { return true },
		Observer: seen.observe,
	})
	_, err := in.Middleware(func(*message.Message) ([]*message.Message, error) {
		require.Empty(t, seen.all(), "told before the handler ran")
		return nil, own
	})(message.NewMessage("42", nil))
	require.Equal(t, own, err)
	require.Equal(t, own, seen.only(t).Err)
}

func TestAPanicOfABypassedMessageIsObservedOnce(t *testing.T) {
	t.Parallel()
	seen := &events{}
	in := mustNew(t, newFakeStore(), inbox.Config{
		Bypass:   func(*message.Message) bool { return true },
		Observer: seen.observe,
	})
	panicked := apart(func() {
		_, _ = in.Middleware(func(*message.Message) ([]*message.Message, error) { panic("mine") })(message.NewMessage("42", nil))
	})
	require.Equal(t, "mine", panicked)
	require.Equal(t, inbox.OutcomeBypassed, seen.only(t).Outcome)
}

func TestTheMiddlewareTwiceInOneChain(t *testing.T) {
	t.Parallel()
	store, seen, logger := newFakeStore(), &events{}, watermill.NewCaptureLogger()
	in := mustNew(t, store, inbox.Config{Observer: seen.observe, Logger: logger})
	ran := 0
	ctx := routed(t, "charge", "orders")
	handler := in.Middleware(in.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		ran++
		require.Equal(t, ran, tx(msg.Context()), "the outer transaction")
		return nil, nil
	}))
	for _, id := range []string{"1", "2", "1", "3"} {
		_, err := handler(message.NewMessageWithContext(ctx, id, nil))
		require.NoError(t, err)
	}
	require.Equal(t, 3, ran)
	require.EqualValues(t, 4, store.calls.Load(), "the inner one does not ask the store")
	require.Len(t, seen.all(), 4, "a delivery is told of once")
	warnings := logged(logger, watermill.InfoLogLevel)
	require.Len(t, warnings, 1, "warned once")
	require.Contains(t, warnings[0].Msg, "twice")
	require.Equal(t, "charge", warnings[0].Fields["handler_name"])
}

func TestA12_NestedInboxes(t *testing.T) {
	t.Parallel()
	newInbox := func(t *testing.T, store inbox.Store, seen *events) *inbox.Inbox {
		t.Helper()
		return mustNew(t, store, inbox.Config{Observer: seen.observe})
	}
	for _, tt := range []struct {
		name      string
		inner     func(t *testing.T, outer *inbox.Inbox, store *fakeStore, seen *events) message.HandlerMiddleware
		passes    bool
		swallowed bool // the outer handler does not return the inner error
	}{
		{name: "same key", passes: true, inner: func(_ *testing.T, outer *inbox.Inbox, _ *fakeStore, _ *events) message.HandlerMiddleware {
			return outer.As("c")
		}},
		{name: "same key of another inbox on the store", passes: true, inner: func(t *testing.T, _ *inbox.Inbox, store *fakeStore, seen *events) message.HandlerMiddleware {
			return newInbox(t, store, seen).As("c")
		}},
		{name: "another consumer", inner: func(_ *testing.T, outer *inbox.Inbox, _ *fakeStore, _ *events) message.HandlerMiddleware {
			return outer.As("d")
		}},
		{name: "another store", inner: func(t *testing.T, _ *inbox.Inbox, _ *fakeStore, seen *events) message.HandlerMiddleware {
			return newInbox(t, newFakeStore(), seen).As("c")
		}},
		{name: "error not returned", swallowed: true, inner: func(_ *testing.T, outer *inbox.Inbox, _ *fakeStore, _ *events) message.HandlerMiddleware {
			return outer.As("d")
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			store, outerSeen, innerSeen := newFakeStore(), &events{}, &events{}
			outer := newInbox(t, store, outerSeen)
			inner := tt.inner(t, outer, store, innerSeen)
			ran := 0
			chain := inner(func(*message.Message) ([]*message.Message, error) { ran++; return nil, nil })
			var innerErr error
			_, err := outer.As("c")(func(msg *message.Message) ([]*message.Message, error) {
				before := msg.Context()
				_, innerErr = chain(msg)
				require.Equal(t, before, msg.Context())
				if tt.swallowed {
					return nil, nil
				}
				return nil, innerErr
			})(message.NewMessage("42", nil))

			require.EqualValues(t, 1, store.calls.Load())
			require.Zero(t, store.open())
			if tt.passes {
				require.NoError(t, err)
				require.Equal(t, 1, ran)
				require.Len(t, store.keys(), 1)
				return
			}
			require.Zero(t, ran, "nothing runs in a second transaction")
			require.ErrorIs(t, innerErr, inbox.ErrNested)
			require.True(t, inbox.IsTransient(innerErr))
			require.ErrorContains(t, innerErr, "the outer message is c/42")
			if tt.swallowed {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, inbox.ErrNested)
			require.Empty(t, store.keys())
		})
	}
}

// A context may outlive its delivery: gochannel with PreserveContext, or a goroutine of the handler, hands it on.
func TestContextsThatOutliveTheDeliveryAreNotNested(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func() error{
		"processed": func() error { return nil },
		"failed":    func() error { return errors.New("mine") },
		"panicked":  func() error { panic("mine") },
		"Goexit":    func() error { runtime.Goexit(); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			in := mustNew(t, newFakeStore(), inbox.Config{})
			var kept context.Context
			apart(func() {
				_, _ = in.As("c")(func(msg *message.Message) ([]*message.Message, error) {
					kept = msg.Context()
					return nil, end()
				})(message.NewMessage("1", nil))
			})
			ran := false
			_, err := in.As("d")(func(*message.Message) ([]*message.Message, error) { ran = true; return nil, nil })(
				message.NewMessageWithContext(context.WithoutCancel(kept), "2", nil))
			require.NoError(t, err)
			require.True(t, ran)
		})
	}
}

// A message with a context of its own is no part of the open delivery's call chain, also on the same goroutine.
func TestMessagesWithTheirOwnContextAreNotNested(t *testing.T) {
	t.Parallel()
	in := mustNew(t, newFakeStore(), inbox.Config{})
	ran := false
	_, err := in.As("c")(func(*message.Message) ([]*message.Message, error) {
		return in.As("d")(func(*message.Message) ([]*message.Message, error) { ran = true; return nil, nil })(message.NewMessage("2", nil))
	})(message.NewMessage("1", nil))
	require.NoError(t, err)
	require.True(t, ran)
}

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

func TestEveryOutcomeIsObservedOnce(t *testing.T) {
	t.Parallel()
	ctx := routed(t, "charge", "orders")
	own := errors.New("mine")
	answer := func(result inbox.Result, err error) func(*fakeStore) {
		return func(s *fakeStore) {
			s.answer = func(d inbox.Delivery) (inbox.Result, error) {
				if err != nil {
					return result, &inbox.Error{Phase: inbox.PhaseClaim, Key: d.Key, Handler: d.Handler, Err: err}
				}
				return result, nil
			}
		}
	}
	fail := func(err error) func(*message.Message) error { return func(*message.Message) error { return err } }
	ackThen := func(end func() error) func(*message.Message) error {
		return func(msg *message.Message) error { msg.Ack(); return end() }
	}
	for _, tt := range []struct {
		name    string
		store   func(*fakeStore)
		handler func(*message.Message) error
		acked   bool // before it arrives, as InstantAck does it
		want    inbox.Outcome
		err     error
	}{
		{name: "processed", want: inbox.OutcomeProcessed},
		{name: "duplicate", store: (*fakeStore).rememberAll, want: inbox.OutcomeDuplicate},
		{name: "duplicate acked early", store: (*fakeStore).rememberAll, acked: true, want: inbox.OutcomeDuplicate},
		{name: "queued", store: answer(inbox.Result{Outcome: inbox.OutcomeQueued}, nil), want: inbox.OutcomeQueued},
		{name: "queued acked early", store: answer(inbox.Result{Outcome: inbox.OutcomeQueued}, nil), acked: true, want: inbox.OutcomeQueued},
		{name: "mismatch reported", store: answer(inbox.Result{Outcome: inbox.OutcomeDuplicate, Mismatch: true}, nil), want: inbox.OutcomeMismatch},
		{name: "mismatch refused", store: answer(inbox.Result{}, inbox.ErrMismatch), want: inbox.OutcomeMismatch, err: inbox.ErrMismatch},
		{name: "late", store: answer(inbox.Result{}, inbox.ErrLate), want: inbox.OutcomeLate, err: inbox.ErrLate},
		{name: "collision", store: answer(inbox.Result{}, inbox.ErrKeyCollision), want: inbox.OutcomeCollision, err: inbox.ErrKeyCollision},
		{name: "in flight", store: answer(inbox.Result{}, inbox.ErrInFlight), want: inbox.OutcomeInFlight, err: inbox.ErrInFlight},
		{name: "in flight acked early", store: answer(inbox.Result{}, inbox.ErrInFlight), acked: true, want: inbox.OutcomeInFlight, err: inbox.ErrInFlight},
		{name: "database down", store: answer(inbox.Result{}, inbox.ErrUnavailable), want: inbox.OutcomeFailed, err: inbox.ErrUnavailable},
		{name: "database down after an early ack", store: answer(inbox.Result{}, inbox.ErrUnavailable), acked: true, want: inbox.OutcomeLost, err: inbox.ErrUnavailable},
		{name: "mismatch after an early ack", store: answer(inbox.Result{}, inbox.ErrMismatch), acked: true, want: inbox.OutcomeLost, err: inbox.ErrMismatch},
		{name: "failed", handler: fail(own), want: inbox.OutcomeFailed, err: own},
		{name: "failed commit", store: func(s *fakeStore) { s.commit = func() (bool, error) { return false, own } }, want: inbox.OutcomeFailed, err: own},
		{name: "panicked", handler: func(*message.Message) error { panic("mine") }, want: inbox.OutcomePanicked},
		{name: "Goexit", handler: func(*message.Message) error { runtime.Goexit(); return nil }, want: inbox.OutcomePanicked},
		{name: "acked early", handler: ackThen(func() error { return nil }), want: inbox.OutcomeAckedEarly},
		{name: "InstantAck", acked: true, want: inbox.OutcomeAckedEarly},
		{name: "lost", handler: ackThen(func() error { return own }), want: inbox.OutcomeLost, err: own},
		{name: "lost at commit", handler: ackThen(func() error { return nil }), store: func(s *fakeStore) { s.commit = func() (bool, error) { return false, own } }, want: inbox.OutcomeLost, err: own},
		{name: "lost by panic", handler: ackThen(func() error { panic("mine") }), want: inbox.OutcomeLost},
		{name: "lost by Goexit", handler: ackThen(func() error { runtime.Goexit(); return nil }), want: inbox.OutcomeLost},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			store, seen := newFakeStore(), &events{}
			if tt.store != nil {
				tt.store(store)
			}
			var observed context.Context
			in := mustNew(t, store, inbox.Config{Observer: func(ctx context.Context, e inbox.Event) {
				observed = ctx
				seen.observe(ctx, e)
			}})
			msg := message.NewMessageWithContext(ctx, "42", nil)
			if tt.acked {
				msg.Ack()
			}
			var err error
			apart(func() {
				_, err = in.Middleware(func(msg *message.Message) ([]*message.Message, error) {
					require.Empty(t, seen.all(), "told before the fact")
					if tt.handler == nil {
						return nil, nil
					}
					return nil, tt.handler(msg)
				})(msg)
			})
			e := seen.only(t)
			require.Equal(t, tt.want, e.Outcome)
			require.Equal(t, inbox.Key{Consumer: "charge", ID: "42"}, e.Key)
			require.Equal(t, "charge", e.Handler)
			require.Equal(t, "orders", e.Topic)
			require.Positive(t, e.Duration)
			require.Equal(t, ctx, observed, "the Observer finds the message's own context")
			require.Equal(t, err, e.Err)
			require.ErrorIs(t, e.Err, tt.err)
			if tt.err != nil {
				var typed *inbox.Error
				require.ErrorAs(t, err, &typed)
				require.Equal(t, e.Key, typed.Key)
			}
		})
	}
}

// An Observer that panics against the rules is not told again.
func TestAPanickingObserverIsToldOnce(t *testing.T) {
	t.Parallel()
	calls := 0
	in := mustNew(t, newFakeStore(), inbox.Config{Observer: func(context.Context, inbox.Event) { calls++; panic("observer") }})
	require.Equal(t, "observer", apart(func() { _, _ = in.As("c")(nothing)(message.NewMessage("42", nil)) }))
	require.Equal(t, 1, calls)
}

func TestEventCarriesWhatTheStoreMeasured(t *testing.T) {
	t.Parallel()
	for name, err := range map[string]error{"processed": nil, "failed": inbox.ErrSerialization} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store, seen := newFakeStore(), &events{}
			store.answer = func(inbox.Delivery) (inbox.Result, error) {
				return inbox.Result{Outcome: inbox.OutcomeProcessed, TxRetries: 2, Wait: 3 * time.Second}, err
			}
			_, got := mustNew(t, store, inbox.Config{Observer: seen.observe}).As("c")(nothing)(message.NewMessage("42", nil))
			require.ErrorIs(t, got, err)
			require.Equal(t, 2, seen.only(t).TxRetries)
			require.Equal(t, 3*time.Second, seen.only(t).Wait)
		})
	}
}

func TestAckedEarlyIsAnErrorLineOncePerHandler(t *testing.T) {
	t.Parallel()
	logger, seen := watermill.NewCaptureLogger(), &events{}
	store := newFakeStore()
	in := mustNew(t, store, inbox.Config{Logger: logger, Observer: seen.observe})
	for _, name := range []string{"charge", "refund"} {
		ctx := routed(t, name, "orders")
		for _, id := range []string{"1", "2", "3"} {
			_, err := in.Middleware(func(msg *message.Message) ([]*message.Message, error) {
				msg.Ack()
				return nil, nil
			})(message.NewMessageWithContext(ctx, id, nil))
			require.NoError(t, err)
		}
	}
	require.Len(t, store.keys(), 6, "the work is committed")
	require.Equal(t, slices.Repeat([]inbox.Outcome{inbox.OutcomeAckedEarly}, 6), seen.outcomes(), "each one is counted")
	lines := logged(logger, watermill.ErrorLogLevel)
	require.Len(t, lines, 2)
	for i, name := range []string{"charge", "refund"} {
		require.Equal(t, name, lines[i].Fields["handler_name"])
		require.Contains(t, lines[i].Msg, "Remove InstantAck or the handler's msg.Ack()")
		require.Equal(t, "1", lines[i].Fields["message_id"])
	}
}

func TestLostMessagesAreErrorLinesEach(t *testing.T) {
	t.Parallel()
	logger := watermill.NewCaptureLogger()
	store := newFakeStore()
	in := mustNew(t, store, inbox.Config{Logger: logger})
	own := errors.New("mine")
	for _, id := range []string{"1", "2"} {
		_, err := in.As("c")(func(msg *message.Message) ([]*message.Message, error) {
			msg.Ack()
			return nil, own
		})(message.NewMessage(id, []byte("secret")))
		require.ErrorIs(t, err, own)
	}
	apart(func() {
		_, _ = in.As("c")(func(msg *message.Message) ([]*message.Message, error) { msg.Ack(); panic("mine") })(message.NewMessage("3", []byte("secret")))
	})
	require.Empty(t, store.keys(), "rolled back")
	lines := logged(logger, watermill.ErrorLogLevel)
	require.Len(t, lines, 3)
	for i, line := range lines {
		require.Contains(t, line.Msg, "lost")
		require.Contains(t, line.Msg, "Remove InstantAck or the handler's msg.Ack()")
		require.Equal(t, fmt.Sprint(i+1), line.Fields["message_id"])
		require.Equal(t, "c", line.Fields["consumer"])
		require.NotContains(t, fmt.Sprint(line), "secret", "payloads are never logged")
	}
	require.ErrorIs(t, lines[0].Err, own)
}

func TestAnUnusedTransactionIsWarnedOfOncePerHandler(t *testing.T) {
	t.Parallel()
	logger, seen := watermill.NewCaptureLogger(), &events{}
	store := newFakeStore()
	store.unused = true
	in := mustNew(t, store, inbox.Config{Logger: logger, Observer: seen.observe})
	for _, name := range []string{"charge", "refund"} {
		ctx := routed(t, name, "orders")
		for _, id := range []string{"1", "2", "3"} {
			_, err := in.Middleware(nothing)(message.NewMessageWithContext(ctx, id, nil))
			require.NoError(t, err)
		}
	}
	lines := logged(logger, watermill.InfoLogLevel)
	require.Len(t, lines, 2)
	require.Equal(t, "charge", lines[0].Fields["handler_name"])
	require.Equal(t, "refund", lines[1].Fields["handler_name"])
	require.Contains(t, lines[0].Msg, "TxFromContext")
	require.Empty(t, logged(logger, watermill.ErrorLogLevel))
	for _, e := range seen.all() {
		require.Equal(t, inbox.OutcomeProcessed, e.Outcome)
		require.True(t, e.TxUnused)
	}
}

func TestMismatchPolicies(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		policy inbox.MismatchPolicy
		want   error
	}{
		{"", inbox.ErrMismatch},
		{inbox.MismatchReject, inbox.ErrMismatch},
		{inbox.MismatchReport, nil},
	} {
		t.Run("policy "+string(tt.policy), func(t *testing.T) {
			t.Parallel()
			logger, seen := watermill.NewCaptureLogger(), &events{}
			store := newFakeStore()
			in := mustNew(t, store, inbox.Config{Mismatch: tt.policy, Logger: logger, Observer: seen.observe})
			ran := 0
			mw := in.As("c")(func(*message.Message) ([]*message.Message, error) { ran++; return nil, nil })
			_, err := mw(message.NewMessage("42", []byte("10")))
			require.NoError(t, err)
			for range 3 {
				_, err := mw(message.NewMessage("42", []byte("20")))
				require.ErrorIs(t, err, tt.want)
				require.Equal(t, tt.want != nil, inbox.IsPermanent(err))
			}
			_, err = mw(message.NewMessage("42", []byte("10")))
			require.NoError(t, err, "the right content is a duplicate afterwards")
			require.Equal(t, 1, ran)
			require.Equal(t, []inbox.Outcome{
				inbox.OutcomeProcessed, inbox.OutcomeMismatch, inbox.OutcomeMismatch, inbox.OutcomeMismatch, inbox.OutcomeDuplicate,
			}, seen.outcomes())
			warnings := logged(logger, watermill.InfoLogLevel)
			if tt.want != nil {
				require.Empty(t, warnings, "returned, so not logged as well")
				return
			}
			require.Len(t, warnings, 1)
			require.Contains(t, warnings[0].Msg, "MismatchReport")
		})
	}
}

func TestAnEndedContextIsPartOfTheError(t *testing.T) {
	t.Parallel()
	own := errors.New("sql: transaction has already been committed or rolled back")
	mw := func(end func() error) message.HandlerFunc {
		return mustNew(t, newFakeStore(), inbox.Config{}).As("c")(func(*message.Message) ([]*message.Message, error) { return nil, end() })
	}

	t.Run("cancelled", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithCancel(t.Context())
		_, err := mw(func() error { cancel(); return own })(message.NewMessageWithContext(ctx, "42", nil))
		require.ErrorIs(t, err, own)
		require.ErrorIs(t, err, context.Canceled, "the router logs it quietly")
		require.True(t, inbox.IsTransient(err))
		requirePhase(t, inbox.PhaseHandle, err)
	})
	t.Run("deadline", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
		defer cancel()
		_, err := mw(func() error { return own })(message.NewMessageWithContext(ctx, "42", nil))
		require.ErrorIs(t, err, own)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NotErrorIs(t, err, context.Canceled)
	})
	t.Run("said already", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithCancel(t.Context())
		_, err := mw(func() error { cancel(); return fmt.Errorf("query: %w", ctx.Err()) })(message.NewMessageWithContext(ctx, "42", nil))
		require.EqualError(t, err, "inbox: handle c/42: query: context canceled")
	})
	t.Run("a refused message", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := mw(func() error { return nil })(message.NewMessageWithContext(ctx, "", nil))
		require.ErrorIs(t, err, inbox.ErrNoMessageID)
		require.ErrorIs(t, err, context.Canceled)
		require.True(t, inbox.IsPermanent(err))
		require.False(t, inbox.IsTransient(err))
	})
	t.Run("alive", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		_, err := mw(func() error { return own })(message.NewMessageWithContext(ctx, "42", nil))
		require.NotErrorIs(t, err, context.Canceled)
	})
	t.Run("after success", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithCancel(t.Context())
		_, err := mw(func() error { cancel(); return nil })(message.NewMessageWithContext(ctx, "42", nil))
		require.NoError(t, err, "what is committed is committed")
	})
}

// The copies' ERROR lines are what operators of other libraries complain about.
func TestAThousandDuplicatesAreQuiet(t *testing.T) {
	t.Parallel()
	logger, seen := watermill.NewCaptureLogger(), &events{}
	in := mustNew(t, newFakeStore(), inbox.Config{Logger: logger, Observer: seen.observe})
	var ran atomic.Int32
	handler := in.As("c")(func(*message.Message) ([]*message.Message, error) { ran.Add(1); return nil, nil })
	_, err := handler(message.NewMessage("42", nil))
	require.NoError(t, err)
	var wg sync.WaitGroup
	errs := make([]error, 1000)
	for i := range errs {
		wg.Go(func() { _, errs[i] = handler(message.NewMessage("42", nil)) })
	}
	wg.Wait()
	require.NoError(t, errors.Join(errs...))
	require.EqualValues(t, 1, ran.Load())
	duplicates := 0
	for _, outcome := range seen.outcomes() {
		if outcome == inbox.OutcomeDuplicate {
			duplicates++
		}
	}
	require.Equal(t, 1000, duplicates)
	require.Len(t, logger.Captured(), 1, "of one level only")
	require.Len(t, logged(logger, watermill.DebugLogLevel), 1000)
}

func TestOneInboxServesManyGoroutines(t *testing.T) {
	t.Parallel()
	store, seen := newFakeStore(), &events{}
	in := mustNew(t, store, inbox.Config{Logger: watermill.NewCaptureLogger(), Observer: seen.observe})
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 100 {
				_, _ = in.As(fmt.Sprint("c", g%2))(func(msg *message.Message) ([]*message.Message, error) {
					if i%3 == 0 {
						msg.Ack()
					}
					return nil, nil
				})(message.NewMessage(fmt.Sprint(i), nil))
			}
		})
	}
	wg.Wait()
	require.Len(t, store.keys(), 200)
	require.Len(t, seen.all(), 800)
}

// fakeStore is a Store in memory: the copies of a message wait for each other.
type fakeStore struct {
	attempts int                                          // how often the work runs before it is committed
	commit   func() (done bool, err error)                // the fate and the reply of COMMIT
	answer   func(d inbox.Delivery) (inbox.Result, error) // the answer, instead of all below
	all      bool                                         // everything is remembered
	unused   bool                                         // Result.TxUnused

	calls atomic.Int32
	begun atomic.Int32

	locks sync.Map // one delivery of a key at a time
	mu    sync.Mutex
	rows  map[inbox.Key]inbox.Fingerprint
	seen  []inbox.Delivery
	txs   int
}

func newFakeStore() *fakeStore { return &fakeStore{rows: map[inbox.Key]inbox.Fingerprint{}} }

func (s *fakeStore) Process(ctx context.Context, d inbox.Delivery, fn inbox.Func) (inbox.Result, error) {
	s.calls.Add(1)
	s.mu.Lock()
	s.seen = append(s.seen, d)
	s.mu.Unlock()
	if s.answer != nil {
		return s.answer(d)
	}
	lock, _ := s.locks.LoadOrStore(d.Key, &sync.Mutex{})
	lock.(*sync.Mutex).Lock()
	defer lock.(*sync.Mutex).Unlock()
	fail := func(phase inbox.Phase, err error) (inbox.Result, error) {
		return inbox.Result{}, &inbox.Error{Phase: phase, Key: d.Key, Handler: d.Handler, Err: err}
	}

	s.mu.Lock()
	remembered, found := s.rows[d.Key]
	s.mu.Unlock()
	switch {
	case s.all:
		return inbox.Result{Outcome: inbox.OutcomeDuplicate}, nil
	case found && remembered != d.Fingerprint && !d.AcceptMismatch:
		return fail(inbox.PhaseClaim, inbox.ErrMismatch)
	case found:
		return inbox.Result{Outcome: inbox.OutcomeDuplicate, Mismatch: remembered != d.Fingerprint}, nil
	}

	var produced []*message.Message
	for range max(s.attempts, 1) {
		var err error
		if produced, err = s.run(ctx, fn); err != nil {
			return fail(inbox.PhaseHandle, err)
		}
	}
	done, err := true, error(nil)
	if s.commit != nil {
		done, err = s.commit()
	}
	if done {
		s.mu.Lock()
		s.rows[d.Key] = d.Fingerprint
		s.mu.Unlock()
	}
	if err != nil {
		return fail(inbox.PhaseCommit, err)
	}
	return inbox.Result{Outcome: inbox.OutcomeProcessed, Messages: produced, TxUnused: s.unused}, nil
}

func (s *fakeStore) run(ctx context.Context, fn inbox.Func) ([]*message.Message, error) {
	s.begun.Add(1)
	defer s.begun.Add(-1)
	s.mu.Lock()
	s.txs++
	number := s.txs
	s.mu.Unlock()
	return fn(context.WithValue(ctx, ctxKey("tx"), number))
}

func (s *fakeStore) rememberAll() { s.all = true }

// open is the number of transactions that are open.
func (s *fakeStore) open() int { return int(s.begun.Load()) }

func (s *fakeStore) keys() []inbox.Key {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.rows))
}

func (s *fakeStore) deliveries() []inbox.Delivery {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.seen)
}

// only gives the one delivery that the store has seen.
func (s *fakeStore) only(t *testing.T) inbox.Delivery {
	t.Helper()
	seen := s.deliveries()
	require.Len(t, seen, 1)
	return seen[0]
}

type ctxKey string

// tx gives the number of the fake transaction in a context, 0 for none.
func tx(ctx context.Context) int {
	n, _ := ctx.Value(ctxKey("tx")).(int)
	return n
}

// events is an Observer that keeps what it is told.
type events struct {
	mu   sync.Mutex
	list []inbox.Event
}

func (e *events) observe(_ context.Context, event inbox.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.list = append(e.list, event)
}

func (e *events) all() []inbox.Event {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.list)
}

func (e *events) outcomes() []inbox.Outcome {
	var outcomes []inbox.Outcome
	for _, event := range e.all() {
		outcomes = append(outcomes, event.Outcome)
	}
	return outcomes
}

func (e *events) only(t *testing.T) inbox.Event {
	t.Helper()
	all := e.all()
	require.Len(t, all, 1, "the Observer is told once")
	return all[0]
}

func mustNew(t *testing.T, store inbox.Store, config inbox.Config) *inbox.Inbox {
	t.Helper()
	in, err := inbox.New(store, config)
	require.NoError(t, err)
	return in
}

func nothing(*message.Message) ([]*message.Message, error) { return nil, nil }

// ends are the ways in which a handler may end.
func ends() map[string]func() error {
	return map[string]func() error{
		"processed":            func() error { return nil },
		"error":                func() error { return errors.New("mine") },
		"panic":                func() error { panic("mine") },
		"panic with an error":  func() error { panic(errors.New("mine")) },
		"runtime.Goexit":       func() error { runtime.Goexit(); return nil },
		"panic by a nil call":  nil,
		"error of the context": func() error { return context.Canceled },
	}
}

// apart calls fn on a goroutine of its own, which may panic or end by runtime.Goexit, and gives the panic's value.
func apart(fn func()) (panicked any) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() { panicked = recover() }()
		fn()
	}()
	<-done
	return panicked
}

// routed gives the context that a router gives to the messages of a handler.
func routed(t *testing.T, handler, topic string) context.Context {
	t.Helper()
	pubSub := gochannel.NewGoChannel(gochannel.Config{}, watermill.NopLogger{})
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	require.NoError(t, err)
	got := make(chan context.Context, 1)
	router.AddConsumerHandler(handler, topic, pubSub, func(msg *message.Message) error {
		got <- context.WithoutCancel(msg.Context())
		return nil
	})
	done := make(chan error, 1)
	go func() { done <- router.Run(t.Context()) }()
	<-router.Running()
	require.NoError(t, pubSub.Publish(topic, message.NewMessage("1", nil)))
	ctx := <-got
	require.NoError(t, router.Close())
	require.NoError(t, <-done)
	require.NoError(t, pubSub.Close())
	return ctx
}

func logged(logger *watermill.CaptureLoggerAdapter, level watermill.LogLevel) []watermill.CapturedMessage {
	return logger.Captured()[level]
}

func acked(msg *message.Message) bool {
	select {
	case <-msg.Acked():
		return true
	default:
		return false
	}
}

func requirePhase(t *testing.T, want inbox.Phase, err error) {
	t.Helper()
	var e *inbox.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, want, e.Phase)
}
