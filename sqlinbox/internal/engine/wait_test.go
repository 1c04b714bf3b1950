package engine

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestPauseGrowsToItsLimit(t *testing.T) {
	t.Parallel()
	for range 100 {
		var p pause
		around := 0 * time.Millisecond
		for range 20 {
			around = min(max(around*3/2, time.Millisecond), 100*time.Millisecond)
			got := p.next()
			require.GreaterOrEqual(t, got, around/2)
			require.Less(t, got, around*3/2)
		}
	}
}

func TestRetryPauseGrowsToItsLimit(t *testing.T) {
	t.Parallel()
	for n, ms := range map[int]int{1: 2, 2: 4, 3: 8, 6: 64, 7: 64, 1000: 64} {
		around := time.Duration(ms) * time.Millisecond
		for range 100 {
			got := retryPause(n)
			require.GreaterOrEqual(t, got, around/2)
			require.Less(t, got, around*3/2)
		}
	}
}

// Copies that met once must not meet again at the end of their pauses.
func TestJitterDiffers(t *testing.T) {
	t.Parallel()
	seen := map[time.Duration]bool{}
	for range 100 {
		seen[jitter(mostPause)] = true
	}
	require.Greater(t, len(seen), 50)
}

func TestSleep(t *testing.T) {
	t.Parallel()
	t.Run("to the end", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			require.NoError(t, sleep(t.Context(), time.Minute))
			require.Equal(t, time.Minute, time.Since(began))
		})
	})
	t.Run("cancelled", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(time.Second, cancel)
			began := time.Now()
			require.Equal(t, context.Canceled, sleep(ctx, time.Minute))
			require.Equal(t, time.Second, time.Since(began))
		})
	})
	t.Run("past the deadline", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), -1)
			defer cancel()
			began := time.Now()
			require.Equal(t, context.DeadlineExceeded, sleep(ctx, time.Minute))
			require.Zero(t, time.Since(began))
		})
	})
}

func TestSettings(t *testing.T) {
	t.Parallel()
	zero := Settings{}.resolved()
	require.Equal(t, 5*time.Second, zero.InFlightWait)
	require.Equal(t, 3, zero.TxRetries)
	require.Equal(t, 10*time.Second, zero.CommitTimeout)
	require.NotNil(t, zero.Logger)

	none := Settings{InFlightWait: -1, TxRetries: -1}.resolved()
	require.Zero(t, none.InFlightWait)
	require.Zero(t, none.TxRetries)

	own := Settings{InFlightWait: time.Minute, TxRetries: 7, CommitTimeout: time.Second}.resolved()
	require.Equal(t, time.Minute, own.InFlightWait)
	require.Equal(t, 7, own.TxRetries)
	require.Equal(t, time.Second, own.CommitTimeout)
}
