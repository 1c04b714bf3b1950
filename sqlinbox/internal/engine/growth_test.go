package engine_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox/internal/engine"
)

// TestAllocations counts what Process itself takes, over a backend that allocates nothing. Five of a first delivery's are
// the standard library's context of the COMMIT, which does not end with the message's and has a limit of its own; the
// others are the claim, the handler's context and the entry of the done keys.
func TestAllocations(t *testing.T) { // not parallel: it counts for the whole program
	for _, tt := range []struct {
		name       string
		deliveries []inbox.Delivery
		settings   engine.Settings
		most       float64
	}{
		{"first delivery", manyDeliveries(1001), engine.Settings{DoneKeys: 64}, 8},
		{"first delivery without done keys", manyDeliveries(1), engine.Settings{DoneTTL: -1}, 7},
		{"seen duplicate", manyDeliveries(1), engine.Settings{}, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := engine.New(&idleBackend{}, tt.settings)
			for _, d := range manyDeliveries(200)[100:] { // the consumer is known and the done keys are full
				process(t, e, d)
			}
			process(t, e, tt.deliveries[0])
			next := 0
			require.LessOrEqual(t, testing.AllocsPerRun(1000, func() {
				d := tt.deliveries[next%len(tt.deliveries)]
				next++
				if _, err := e.Process(context.Background(), d, doNothing); err != nil {
					t.Error(err)
				}
			}), tt.most)
		})
	}
}

// TestNothingGrows handles a million messages, with copies at the same time, failures and panics, and looks at what is
// left. The done keys are in it, at most as many as they may be.
func TestNothingGrows(t *testing.T) { // not parallel: it looks at the whole program
	const (
		workers  = 8
		doneKeys = 1000
		mostHeap = 2 << 20 // bytes more than after the first tenth, when the done keys are full
	)
	messages := 1_000_000
	if os.Getenv("INBOX_TEST_SCALE") != "1" {
		messages /= 10
	}
	e := engine.New(&idleBackend{}, engine.Settings{DoneKeys: doneKeys})
	handle := func(from, to int) {
		var wg sync.WaitGroup
		for worker := range workers {
			wg.Go(func() {
				for i := from + worker/2; i < to; i += workers / 2 { // two workers for each message
					deliverLoosely(e, i)
				}
			})
		}
		wg.Wait()
	}
	handle(0, messages/10)
	heap, goroutines := liveHeap(), runtime.NumGoroutine()
	handle(messages/10, messages)
	grown := int(liveHeap()) - int(heap)
	t.Logf("%d messages, %d bytes more on the heap", messages, grown)
	require.Less(t, grown, mostHeap)
	require.LessOrEqual(t, runtime.NumGoroutine(), goroutines)
	n, oldest := e.InFlight()
	require.Zero(t, n)
	require.Zero(t, oldest)
	runtime.KeepAlive(e)
}

// deliverLoosely delivers a message whose handler fails now and then.
func deliverLoosely(e *engine.Engine, i int) {
	d := delivery
	d.Key.ID = "order " + strconv.Itoa(i)
	defer func() { _ = recover() }()
	_, _ = e.Process(context.Background(), d, func(context.Context) ([]*message.Message, error) {
		switch {
		case i%97 == 0:
			panic("index out of range")
		case i%31 == 0:
			return nil, errors.New("declined")
		}
		return nil, nil
	})
}

// liveHeap is what is reachable. Two collections empty a sync.Pool.
func liveHeap() uint64 {
	runtime.GC()
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}

func process(t *testing.T, e *engine.Engine, d inbox.Delivery) inbox.Result {
	t.Helper()
	result, err := e.Process(t.Context(), d, doNothing)
	require.NoError(t, err)
	return result
}

func manyDeliveries(n int) []inbox.Delivery {
	list := make([]inbox.Delivery, n)
	for i := range list {
		list[i] = delivery
		list[i].Key.ID = fmt.Sprint("order ", i)
	}
	return list
}

func doNothing(context.Context) ([]*message.Message, error) { return nil, nil }

// idleBackend claims whatever it is asked for, and allocates nothing but, at times, a transaction.
type idleBackend struct{ txs sync.Pool }

func (b *idleBackend) Claim(context.Context, *engine.Claim, time.Duration) (engine.Answer, error) {
	tx, _ := b.txs.Get().(*idleTx)
	if tx == nil {
		tx = &idleTx{backend: b}
	}
	return engine.Answer{Tx: tx}, nil
}

func (b *idleBackend) Scheme(_ context.Context, s engine.Scheme, _ time.Duration) (string, error) {
	return s.Scheme, nil
}

func (b *idleBackend) Fault(error) engine.Fault { return engine.FaultNone }

type idleTx struct {
	backend *idleBackend
	scope   engine.Scope
}

func (t *idleTx) Scope() *engine.Scope { return &t.scope }

func (t *idleTx) Commit(context.Context, *engine.Record) error {
	t.backend.txs.Put(t)
	return nil
}

func (t *idleTx) Rollback(context.Context) error { return nil }
