package engine

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	inbox "github.com/watermill-contrib/watermill-inbox"
)

func TestFlight_OneAtATimeInOrder(t *testing.T) {
	t.Parallel()
	var f flight
	key := inbox.StorageKey{1}
	require.NoError(t, enter(&f, t.Context(), key, time.Minute))
	require.NoError(t, enter(&f, t.Context(), inbox.StorageKey{2}, 0), "another message does not wait")

	const n = 20
	order := make(chan int, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			if enter(&f, context.Background(), key, time.Minute) == nil {
				order <- i
				f.leave(key)
			}
		})
		require.Eventually(t, func() bool { return f.behind(key) == i+1 }, 10*time.Second, time.Millisecond)
	}
	f.leave(key)
	wg.Wait()
	for i := range n {
		require.Equal(t, i, <-order)
	}
	f.leave(inbox.StorageKey{2})
	count, _ := f.inFlight()
	require.Zero(t, count)
}

func TestFlight_WaitersObeyTheirLimits(t *testing.T) {
	t.Parallel()
	var f flight
	key := inbox.StorageKey{1}
	require.NoError(t, enter(&f, t.Context(), key, 0))
	require.ErrorIs(t, enter(&f, t.Context(), key, 0), errWaited, "no limit: at once")
	require.ErrorIs(t, enter(&f, t.Context(), key, time.Millisecond), errWaited)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- enter(&f, ctx, key, time.Minute) }()
	require.Eventually(t, func() bool { return f.behind(key) == 1 }, 10*time.Second, time.Millisecond)
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)
	require.Zero(t, f.behind(key))
	f.leave(key)
	require.NoError(t, enter(&f, t.Context(), key, 0), "who gave up is not waited for")
}

// A waiter that gives up at the moment its turn comes must pass the turn on.
func TestFlight_NoTurnIsLost(t *testing.T) {
	t.Parallel()
	var f flight
	key := inbox.StorageKey{1}
	var inside, most atomic.Int32
	var wg sync.WaitGroup
	for i := range 2000 {
		wg.Go(func() {
			limit := time.Duration(i%7) * 100 * time.Microsecond
			if i%10 == 0 {
				limit = time.Minute
			}
			if enter(&f, context.Background(), key, limit) != nil {
				return
			}
			most.Store(max(most.Load(), inside.Add(1)))
			inside.Add(-1)
			f.leave(key)
		})
	}
	wg.Wait()
	require.EqualValues(t, 1, most.Load())
	count, _ := f.inFlight()
	require.Zero(t, count)
}

// The same, with the turn and the end of the context at the same moment, again and again.
func TestFlight_TurnComesAsTheWaiterGivesUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var f flight
		key := inbox.StorageKey{1}
		for range 100 {
			require.NoError(t, enter(&f, t.Context(), key, 0))
			ctx, cancel := context.WithCancel(t.Context())
			go func() {
				if enter(&f, ctx, key, time.Minute) == nil {
					f.leave(key)
				}
			}()
			synctest.Wait()
			cancel() // wakes the waiter, who comes too late
			f.leave(key)
			synctest.Wait()
			count, _ := f.inFlight()
			require.Zero(t, count, "nobody is there to leave")
		}
	})
}

func (f *flight) behind(key inbox.StorageKey) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	if c := f.copies[key]; c != nil {
		return len(c.behind)
	}
	return 0
}

func enter(f *flight, ctx context.Context, key inbox.StorageKey, limit time.Duration) error { //nolint:revive // as the method
	_, err := f.enter(ctx, key, limit)
	return err
}
