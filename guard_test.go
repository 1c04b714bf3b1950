package inbox

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

// Nothing that the package's tests and examples started may still run at the end.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The tests run on synctest's clock, which also fails on a goroutine that is left behind.

var errClosing = errors.New("the router is closing")

func guarded(parent context.Context, grace time.Duration) (context.Context, *guard, *message.Message) {
	msg := message.NewMessageWithContext(parent, "42", nil)
	ctx, g := newGuard(msg, grace)
	return ctx, g, msg
}

type guardKey struct{}

func TestGuardOfAContextThatNeverEnds(t *testing.T) {
	t.Parallel()
	ctx, g, _ := guarded(context.Background(), time.Second)
	require.Equal(t, context.Background(), ctx)
	g.handle(true)
	g.handle(false)
	g.release()
	require.NoError(t, ctx.Err())
}

func TestGuardKeepsValues(t *testing.T) {
	t.Parallel()
	parent, cancel := context.WithCancel(context.WithValue(t.Context(), guardKey{}, "value"))
	defer cancel()
	ctx, g, _ := guarded(parent, 0)
	defer g.release()
	require.Equal(t, "value", ctx.Value(guardKey{}))
}

func TestGuardPassesACancellationOn(t *testing.T) {
	t.Parallel()
	for _, handling := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			parent, cancel := context.WithCancelCause(t.Context())
			ctx, g, _ := guarded(parent, 0)
			defer g.release()
			g.handle(handling)
			synctest.Wait()
			require.NoError(t, ctx.Err())
			cancel(errClosing)
			synctest.Wait()
			require.ErrorIs(t, ctx.Err(), context.Canceled)
			require.Equal(t, errClosing, context.Cause(ctx))
		})
	}
}

func TestGuardOfACancelledMessage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		parent, cancel := context.WithCancelCause(t.Context())
		cancel(errClosing)
		ctx, g, _ := guarded(parent, time.Hour)
		defer g.release()
		require.ErrorIs(t, ctx.Err(), context.Canceled, "at once: nothing should begin")
		require.Equal(t, errClosing, context.Cause(ctx))
	})
}

// A subscriber cancels the context as soon as it sees the ack. The message cannot come again: its work must not die.
func TestGuardKeepsACancellationAfterTheAckBack(t *testing.T) {
	t.Parallel()
	t.Run("in the handler", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			parent, cancel := context.WithCancel(t.Context())
			ctx, g, msg := guarded(parent, 0)
			defer g.release()
			g.handle(true)
			msg.Ack()
			cancel()
			time.Sleep(time.Hour)
			require.NoError(t, ctx.Err())
		})
	})
	t.Run("before it arrives", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			parent, cancel := context.WithCancel(t.Context())
			msg := message.NewMessageWithContext(parent, "42", nil)
			msg.Ack()
			cancel()
			ctx, g := newGuard(msg, 0)
			defer g.release()
			time.Sleep(time.Hour)
			require.NoError(t, ctx.Err())
		})
	})
	t.Run("but a nack does not", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			parent, cancel := context.WithCancel(t.Context())
			ctx, g, msg := guarded(parent, 0)
			defer g.release()
			msg.Nack()
			cancel()
			synctest.Wait()
			require.ErrorIs(t, ctx.Err(), context.Canceled)
		})
	})
}

func TestGuardKeepsTheDeadline(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*guard, *message.Message){
		"plain":    func(*guard, *message.Message) {},
		"handling": func(g *guard, _ *message.Message) { g.handle(true) },
		"acked":    func(_ *guard, msg *message.Message) { msg.Ack() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				parent, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				ctx, g, msg := guarded(parent, time.Hour) // the grace is for cancellations
				defer g.release()
				change(g, msg)
				want, _ := parent.Deadline()
				got, ok := ctx.Deadline()
				require.True(t, ok)
				require.Equal(t, want, got)

				time.Sleep(time.Minute - 1)
				synctest.Wait()
				require.NoError(t, ctx.Err())
				time.Sleep(time.Nanosecond)
				synctest.Wait()
				require.Equal(t, context.DeadlineExceeded, ctx.Err())
			})
		})
	}
}

func TestGuardOfADeadlineThatHasPassed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		parent, cancel := context.WithTimeout(t.Context(), -time.Second)
		defer cancel()
		ctx, g, _ := guarded(parent, time.Hour)
		defer g.release()
		require.Equal(t, context.DeadlineExceeded, ctx.Err())
	})
}

// A cancellation before the deadline is a cancellation.
func TestGuardPassesACancellationBeforeTheDeadlineOn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		parent, cancel := context.WithTimeout(t.Context(), time.Minute)
		ctx, g, _ := guarded(parent, 0)
		defer g.release()
		cancel()
		synctest.Wait()
		require.Equal(t, context.Canceled, ctx.Err())
	})
}

func TestGuardGivesTheHandlerItsGrace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		parent, cancel := context.WithCancelCause(t.Context())
		ctx, g, _ := guarded(parent, time.Minute)
		defer g.release()
		g.handle(true)
		time.Sleep(time.Hour)
		cancel(errClosing)
		time.Sleep(time.Minute - 1)
		synctest.Wait()
		require.NoError(t, ctx.Err())
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		require.Equal(t, context.Canceled, ctx.Err())
		require.Equal(t, errClosing, context.Cause(ctx))
	})
}

func TestGuardGraceEndsAtTheDeadline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		parent, cancel := context.WithTimeout(t.Context(), time.Second)
		ctx, g, _ := guarded(parent, time.Minute)
		defer g.release()
		g.handle(true)
		cancel()
		time.Sleep(time.Second)
		synctest.Wait()
		require.Equal(t, context.DeadlineExceeded, ctx.Err())
	})
}

// While copies are waited for, and between two runs of a transaction, there is nothing to finish.
func TestGuardGivesNoGraceOutsideTheHandler(t *testing.T) {
	t.Parallel()
	for name, before := range map[string]func(*guard){
		"before": func(*guard) {},
		"after":  func(g *guard) { g.handle(true); g.handle(false) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				parent, cancel := context.WithCancel(t.Context())
				ctx, g, _ := guarded(parent, time.Minute)
				defer g.release()
				before(g)
				cancel()
				synctest.Wait()
				require.Equal(t, context.Canceled, ctx.Err())
			})
		})
	}
}

func TestGuardReleaseStopsTheTimer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		parent, cancel := context.WithCancel(t.Context())
		ctx, g, _ := guarded(parent, time.Minute)
		g.handle(true)
		cancel()
		synctest.Wait()
		require.NotNil(t, g.timer)
		g.release()
		require.False(t, g.timer.Stop(), "it is stopped already, a minute before its time")
		require.Equal(t, context.Canceled, ctx.Err(), "the context is over with its delivery")
	})
}

func TestGuardReleasedBeforeTheCancellation(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		parent, cancel := context.WithCancelCause(t.Context())
		ctx, g, _ := guarded(parent, time.Minute)
		g.handle(true)
		g.release()
		g.release() // harmless
		cancel(errClosing)
		synctest.Wait()
		require.Nil(t, g.timer)
		require.Equal(t, context.Canceled, context.Cause(ctx))

		// AfterFunc's goroutine may be on its way already when release comes.
		g.passOn(parent)
		require.Nil(t, g.timer)
	})
}

// Not parallel, so that goleak sees no other test's goroutines: they wait for this one to end.
func TestGuardLeavesNoGoroutine(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	for range 100 {
		parent, cancel := context.WithTimeout(context.Background(), time.Hour)
		_, g, msg := guarded(parent, time.Hour)
		g.handle(true)
		cancel()
		msg.Ack()
		g.handle(false)
		g.release()
	}
}

// Many cancellations, acks and releases at once, for the race detector.
func TestGuardRaces(t *testing.T) {
	t.Parallel()
	for range 200 {
		parent, cancel := context.WithCancel(t.Context())
		ctx, g, msg := guarded(parent, time.Nanosecond)
		done := make(chan struct{}, 2)
		go func() { cancel(); done <- struct{}{} }()
		go func() { msg.Ack(); done <- struct{}{} }()
		g.handle(true)
		_ = ctx.Err()
		g.handle(false)
		g.release()
		require.Error(t, ctx.Err())
		<-done
		<-done
	}
}
