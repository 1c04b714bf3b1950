package tests

import (
	"context"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/stretchr/testify/require"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/inboxtest"
)

// crashes are the cases about crash and lost connections (B).
func (s *suite) crashes() []testCase {
	cases := slices.Concat(s.kills(), s.handlerEnds(), s.txEnds(), s.earlyAcks(), s.closings(), s.pools())
	if s.Server {
		cases = slices.Concat(cases, s.networkFaults(), s.silences())
	}
	if s.StartServer != nil {
		cases = append(cases, s.outages()...)
	}
	return cases
}

// crashTasks are what the children of these cases do.
func (s *suite) crashTasks() map[string]taskFunc {
	return map[string]taskFunc{killTask: s.handleAndDie, anyMomentTask: s.handleMany}
}

// patience bounds what must not hang. It is far above what the cases need, also with the race detector on a busy
// machine, so that only a hang reaches it.
const patience = 20 * time.Second

// within runs f and fails the test, with the stacks of all goroutines, when f has not returned by then: a hang is told
// as one. f runs on another goroutine, so it must not end the test itself.
func within(t testing.TB, d time.Duration, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(d):
		stacks := make([]byte, 1<<20)
		t.Fatalf("%s: not over after %v\n%s", what, d, stacks[:runtime.Stack(stacks, true)])
	}
}

// handleWithin passes a message through the middleware and gives its error; it fails the test when that hangs.
func (r *rig) handleWithin(t testing.TB, msg *message.Message, handler message.HandlerFunc) (err error) {
	t.Helper()
	within(t, patience, "delivery", func() { err = r.handle(msg, handler) })
	return err
}

// redeliver delivers copies of a message until one is acked, as a broker would, or ctx ends; it gives the last error.
func (r *rig) redeliver(ctx context.Context, msg *message.Message, handler message.HandlerFunc) error {
	for {
		again := msg.Copy()
		again.SetContext(ctx)
		_, err := middleware.Recoverer(r.Middleware(handler))(again)
		if err == nil || ctx.Err() != nil {
			return err
		}
	}
}

// requireOnce asserts that one message is remembered, that its effect "pay" is there once, and that nothing is left
// behind.
func (r *rig) requireOnce(t testing.TB) {
	t.Helper()
	require.Equal(t, 1, r.Count(t, "pay"), "effects")
	require.Equal(t, 1, r.Rows(t), "memory rows")
	r.requireIdle(t)
}

// requireNothing asserts that a message left no trace.
func (r *rig) requireNothing(t testing.TB) {
	t.Helper()
	require.Equal(t, 0, r.Total(t), "effects")
	require.Equal(t, 0, r.Rows(t), "memory rows")
	r.requireIdle(t)
}

// requireIdle asserts that every connection is back in its pool, or on its way out of it: pgx's pool closes a broken one
// in the background.
func (r *rig) requireIdle(t testing.TB) {
	t.Helper()
	require.Eventually(t, func() bool { return r.InUse() == 0 }, 20*time.Second, time.Millisecond, "connections in use")
}

// warmUp handles a message that leaves nothing behind but the consumer's key scheme, which its first message registers
// with a COMMIT of its own.
func (e *Env) warmUp(t testing.TB) {
	t.Helper()
	err := newRig(t, e, inbox.Config{}).handle(newMessage("warm-up"), func(*message.Message) ([]*message.Message, error) {
		return nil, errHandler
	})
	require.ErrorIs(t, err, errHandler)
}

// behindProxy opens an environment whose store reaches its server through a proxy, and warms it up.
func (s *suite) behindProxy(t testing.TB, o Options) (*Env, *inboxtest.Proxy) {
	t.Helper()
	var proxy *inboxtest.Proxy
	o.Via = func(address string) string {
		var err error
		proxy, err = inboxtest.NewProxy(address)
		require.NoError(t, err)
		t.Cleanup(func() { _ = proxy.Close() })
		return proxy.Addr()
	}
	env := s.open(t, o)
	require.NotNil(t, proxy, "the harness does not use Options.Via")
	t.Cleanup(proxy.Resume) // before the pool says good-bye to its server
	env.warmUp(t)
	return env, proxy
}
