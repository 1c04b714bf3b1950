package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/stretchr/testify/require"

	inbox "github.com/watermill-contrib/watermill-inbox"
)

// forgetter notes what it was told to delete, and when.
type forgetter struct {
	mu      sync.Mutex
	batches [][]inbox.StorageKey
	at      []time.Time
	err     error
}

func (f *forgetter) Forget(ctx context.Context, keys []inbox.StorageKey) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, ok := ctx.Deadline(); !ok {
		return errors.New("no limit")
	}
	f.batches, f.at = append(f.batches, slices.Clone(keys)), append(f.at, time.Now())
	return f.err
}

// told gives the batches and their times.
func (f *forgetter) told() ([][]inbox.StorageKey, []time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.batches), slices.Clone(f.at)
}

func (f *forgetter) answer(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err = err
}

func keysOf(batches [][]inbox.StorageKey) map[inbox.StorageKey]int {
	seen := map[inbox.StorageKey]int{}
	for _, batch := range batches {
		for _, key := range batch {
			seen[key]++
		}
	}
	return seen
}

func key(n int) inbox.StorageKey { return inbox.Key{Consumer: "c", ID: fmt.Sprint(n)}.Storage() }

func TestForgettingCollectsBatches(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		backend := &forgetter{}
		f := &forgetting{backend: backend, logger: watermill.NopLogger{}}
		began := time.Now()
		for n := range 2*forgetBatch + 10 {
			f.add(key(n))
		}
		f.add(key(0)) // a message acked twice
		synctest.Wait()
		batches, _ := backend.told()
		require.Empty(t, batches, "a little later")
		time.Sleep(forgetAfter)
		synctest.Wait()
		batches, at := backend.told()
		require.Len(t, batches, 3)
		require.Equal(t, forgetAfter, at[0].Sub(began))
		require.Len(t, keysOf(batches), 2*forgetBatch+10)
		for _, batch := range batches {
			require.LessOrEqual(t, len(batch), forgetBatch)
			require.True(t, slices.IsSortedFunc(batch, func(a, b inbox.StorageKey) int { return bytes.Compare(a[:], b[:]) }), "in key order")
			require.Len(t, slices.Compact(slices.Clone(batch)), len(batch), "each once")
		}

		f.add(key(-1)) // it starts again
		time.Sleep(forgetAfter)
		synctest.Wait()
		batches, _ = backend.told()
		require.Len(t, batches, 4)
	})
}

func TestForgettingTriesAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		backend := &forgetter{err: errors.New("connection refused")}
		logger := watermill.NewCaptureLogger()
		f := &forgetting{backend: backend, logger: logger}
		f.add(key(1))
		time.Sleep(200 * time.Millisecond)
		synctest.Wait()
		batches, _ := backend.told()
		require.NotEmpty(t, batches)
		backend.answer(nil)
		time.Sleep(time.Minute)
		synctest.Wait()
		batches, _ = backend.told()
		require.Equal(t, []inbox.StorageKey{key(1)}, batches[len(batches)-1])
		require.Empty(t, logger.Captured())
	})
}

func TestForgettingGivesUpAndSaysSo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		backend := &forgetter{err: errors.New("connection refused")}
		logger := watermill.NewCaptureLogger()
		f := &forgetting{backend: backend, logger: logger}
		f.add(key(1))
		time.Sleep(time.Minute)
		synctest.Wait()
		batches, _ := backend.told()
		require.Len(t, batches, forgetTries)
		lines := logger.Captured()[watermill.InfoLogLevel]
		require.Len(t, lines, 1)
		require.Equal(t, "connection refused", lines[0].Fields["cause"])
		require.Equal(t, 1, lines[0].Fields["rows"])

		backend.answer(nil)
		f.add(key(2))
		time.Sleep(forgetAfter)
		synctest.Wait()
		batches, _ = backend.told()
		require.Equal(t, []inbox.StorageKey{key(2)}, batches[forgetTries], "the next ones are tried again")
	})
}

func TestForgettingRaces(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		backend := &forgetter{}
		f := &forgetting{backend: backend, logger: watermill.NopLogger{}}
		var wg sync.WaitGroup
		for g := range 8 {
			wg.Go(func() {
				for i := range 100 {
					f.add(key(g*100 + i))
					time.Sleep(time.Duration(i%7) * time.Millisecond)
				}
			})
		}
		wg.Wait()
		time.Sleep(2 * forgetAfter)
		synctest.Wait()
		batches, _ := backend.told()
		require.Len(t, keysOf(batches), 800, "none is left out")
	})
}
