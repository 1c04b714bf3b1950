package engine

import (
	"bytes"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	inbox "github.com/watermill-contrib/watermill-inbox"
)

// Forgetter is a Backend that deletes recorded messages.
type Forgetter interface {
	// Forget deletes the records of the keys, which are in order.
	Forget(ctx context.Context, keys []inbox.StorageKey) error
}

// How recorded messages are deleted after their ack: together, a little later. A process that ends before that leaves
// them to be replayed once more.
const (
	forgetAfter   = 100 * time.Millisecond
	forgetBatch   = 250
	forgetTimeout = 10 * time.Second
	forgetTries   = 4
)

// forgetting collects the keys whose messages were published and deletes their records in batches. It has no
// goroutine while there is nothing to do.
type forgetting struct {
	backend Forgetter
	logger  watermill.LoggerAdapter

	mu      sync.Mutex
	waiting []inbox.StorageKey
	running bool // a batch is on its way, or timed
}

// Acked is inbox.AckedStore's Acked.
func (e *Engine) Acked(d inbox.Delivery) { e.forgetting.add(d.StorageKey()) }

func (f *forgetting) add(key inbox.StorageKey) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.waiting = append(f.waiting, key)
	if !f.running {
		f.running = true
		time.AfterFunc(forgetAfter, f.run)
	}
}

// run deletes until nothing is waiting.
func (f *forgetting) run() {
	for {
		f.mu.Lock()
		n := min(len(f.waiting), forgetBatch)
		batch := slices.Clone(f.waiting[:n])
		f.waiting = slices.Delete(f.waiting, 0, n)
		f.running = n > 0
		f.mu.Unlock()
		if n == 0 {
			return
		}
		f.forget(batch)
	}
}

// forget deletes one batch. A database that is away is tried again a few times; what is left after that is only
// replayed once more, should a duplicate come.
func (f *forgetting) forget(batch []inbox.StorageKey) {
	slices.SortFunc(batch, func(a, b inbox.StorageKey) int { return bytes.Compare(a[:], b[:]) })
	batch = slices.Compact(batch)
	wait := forgetAfter
	var err error
	for range forgetTries {
		ctx, cancel := context.WithTimeout(context.Background(), forgetTimeout)
		err = f.backend.Forget(ctx, batch)
		cancel()
		if err == nil {
			return
		}
		time.Sleep(jitter(wait))
		wait *= 4
	}
	f.logger.Info("Recorded messages could not be deleted after their ack: they are replayed if their message comes again", watermill.LogFields{
		"rows": len(batch), "cause": err.Error(),
	})
}
