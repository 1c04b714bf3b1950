package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
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
