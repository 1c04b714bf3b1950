package tests

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	inbox "github.com/watermill-contrib/watermill-inbox"
)

// handlerEnds are the cases about handlers that end in another way than by returning what happened.
func (s *suite) handlerEnds() []testCase {
	cases := []testCase{
		{"B5_Panic", s.b5Panic},
		{"B5_Goexit", s.b5Goexit},
		{"B13_CancelledContextIgnored", s.b13(func(parent context.Context) (context.Context, func()) {
			return context.WithCancel(parent)
		})},
		{"B13_PassedDeadlineIgnored", s.b13(func(parent context.Context) (context.Context, func()) {
			ctx, cancel := context.WithTimeout(parent, 300*time.Millisecond)
			return ctx, func() {
				<-ctx.Done()
				cancel()
			}
		})},
	}
	if s.AbortsOnError {
		cases = append(cases, testCase{"B12_SQLErrorSwallowed", s.b12}, testCase{"B12_SQLErrorBehindASavepoint", s.b12Savepoint})
	}
	return cases
}

// writesThen is a handler that writes an effect and goes on with f.
func (r *rig) writesThen(name string, f func(msg *message.Message) error) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		if err := r.Write(msg.Context(), name); err != nil {
			return nil, err
		}
		return nil, f(msg)
	}
}

func (s *suite) b5Panic(t *testing.T) {
	r := s.rig(t, Options{PoolSize: 1}, inbox.Config{})
	msg := newMessage("pay 10")
	ctx := msg.Context()
	value := errors.New("index out of range")
	require.PanicsWithValue(t, value, func() {
		_ = r.handle(msg, r.writesThen("pay", func(*message.Message) error { panic(value) }))
	}, "the panic goes on")

	require.Equal(t, 1, r.events.count(inbox.OutcomePanicked))
	s.requireGoesOn(t, r, msg, ctx == msg.Context())
}

func (s *suite) b5Goexit(t *testing.T) {
	r := s.rig(t, Options{PoolSize: 1}, inbox.Config{})
	msg := newMessage("pay 10")
	ctx := msg.Context()
	returned := false
	within(t, patience, "a goroutine that ends itself", func() {
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_ = r.handle(msg, r.writesThen("pay", func(*message.Message) error {
				runtime.Goexit()
				return nil
			}))
			returned = true
		}()
		<-ended
	})

	require.False(t, returned, "the Goexit goes on")
	require.Equal(t, 1, r.events.count(inbox.OutcomePanicked))
	s.requireGoesOn(t, r, msg, ctx == msg.Context())
}

// requireGoesOn asserts that a message whose handler was torn down left nothing behind, and is handled when it is
// delivered again, as the same *message.Message (a Retry middleware does that) on the only connection.
func (s *suite) requireGoesOn(t *testing.T, r *rig, msg *message.Message, restored bool) {
	t.Helper()
	require.True(t, restored, "the message has its own context again")
	r.requireNothing(t)
	require.NoError(t, r.handleWithin(t, msg, r.writes("pay")))
	r.requireOnce(t)
}

func (s *suite) b12(t *testing.T) {
	r := s.rig(t, Options{PoolSize: 1}, inbox.Config{})
	msg := newMessage("pay 10")
	swallows := r.writesThen("pay", func(msg *message.Message) error {
		require.Error(t, r.Exec(msg.Context(), "SELECT no_such_column"))
		return nil
	})
	for _, handler := range []message.HandlerFunc{swallows, producing(swallows)} {
		err := r.handle(msg.Copy(), handler)
		require.ErrorIs(t, err, inbox.ErrTxAborted, "never an ack for a COMMIT that the server answers with ROLLBACK")
		require.NotErrorIs(t, err, inbox.ErrCommitUnknown)
		require.True(t, inbox.IsTransient(err))
		r.requireNothing(t)
	}
	require.Equal(t, 2, r.events.count(inbox.OutcomeFailed))

	require.NoError(t, r.handleWithin(t, msg.Copy(), r.writes("pay")))
	r.requireOnce(t)
}

// b12Savepoint is the cure that ErrTxAborted names.
func (s *suite) b12Savepoint(t *testing.T) {
	r := s.rig(t, Options{PoolSize: 1}, inbox.Config{})
	require.NoError(t, r.handle(newMessage("pay 10"), r.writesThen("pay", func(msg *message.Message) error {
		require.NoError(t, r.Exec(msg.Context(), "SAVEPOINT attempt"))
		require.Error(t, r.Exec(msg.Context(), "SELECT no_such_column"))
		return r.Exec(msg.Context(), "ROLLBACK TO SAVEPOINT attempt")
	})))
	r.requireOnce(t)
}

// b13 ends the message's context while the handler runs, which takes no notice. limit gives the context and the func
// that ends it or waits for its end.
func (s *suite) b13(limit func(context.Context) (context.Context, func())) func(*testing.T) {
	return func(t *testing.T) {
		r := s.rig(t, Options{PoolSize: 1}, inbox.Config{})
		msg := newMessage("pay 10")
		// The consumer's key scheme and the first connection take their time; the deadline is for the handler alone.
		require.NoError(t, r.handle(newMessage("first"), r.writes("first")))

		delivered := msg.Copy()
		ctx, end := limit(context.Background())
		delivered.SetContext(ctx)
		require.NoError(t, r.handleWithin(t, delivered, r.writesThen("pay", func(msg *message.Message) error {
			end()
			<-msg.Context().Done() // the handler was told, too
			return nil
		})))
		restored := delivered.Context() == ctx
		require.True(t, restored, "the message has its own context again")
		require.Equal(t, 1, r.Count(t, "pay"), "the handler returned nil, so its work is committed")
		require.Equal(t, 0, r.InUse())

		handled := false
		require.NoError(t, r.handle(msg.Copy(), func(*message.Message) ([]*message.Message, error) {
			handled = true
			return nil, nil
		}))
		require.False(t, handled, "the redelivery is a duplicate")
		require.Equal(t, 1, r.events.count(inbox.OutcomeDuplicate))
		require.Equal(t, 1, r.Count(t, "pay"))
	}
}
