package queue

import (
	"context"
	"time"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox/internal/engine"
)

// renew prolongs the leases of what is at work, three times in each lease. A lease that is lost cancels its handler: the
// fence keeps its work out, but it may be talking to the world.
func (w *worker) renew(stop <-chan struct{}) {
	ticker := time.NewTicker(w.settings.LeaseTime / 3)
	defer ticker.Stop()
	for {
		select {
		case <-stop:
			return
		case <-ticker.C:
		}
		for lease, cancel := range w.atWork() {
			if !lease.Completing() { // else its row is locked by its own transaction, which would only delay the others
				w.renewOne(lease, cancel)
			}
		}
	}
}

func (w *worker) atWork() map[*engine.Lease]context.CancelCauseFunc {
	w.mu.Lock()
	defer w.mu.Unlock()
	held := make(map[*engine.Lease]context.CancelCauseFunc, len(w.held))
	for lease, cancel := range w.held {
		held[lease] = cancel
	}
	return held
}

func (w *worker) renewOne(lease *engine.Lease, cancel context.CancelCauseFunc) {
	ctx, done := context.WithTimeout(context.Background(), w.settings.LeaseTime/3)
	defer done()
	renewed, err := w.queue.backend.Renew(ctx, lease.Row(), lease.Token(), w.settings.LeaseTime)
	if err == nil && !renewed && !lease.Completing() {
		// Lost, or its row is locked for a moment by a step or an operator. That is told apart by waiting for the lock.
		renewed, err = w.queue.backend.Hold(ctx, lease.Row(), lease.Token())
	}
	if err != nil || renewed || lease.Completing() {
		return // a failing database is no proof; the fence decides
	}
	w.mu.Lock()
	_, still := w.held[lease]
	w.mu.Unlock()
	if still && lease.Lose() {
		cancel(inbox.ErrLeaseLost)
	}
}
