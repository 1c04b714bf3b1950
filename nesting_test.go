package inbox_test

import (
	"context"
	"errors"
	"runtime"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	inbox "github.com/watermill-contrib/watermill-inbox"
)

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
