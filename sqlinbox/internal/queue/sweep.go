package queue

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill"
)

// sweepEvery is how often lanes are looked for whose first message is blocked though nothing is before it: a process may
// have died between a commit and the promotion that belongs to it.
const sweepEvery = time.Minute

func (w *worker) sweep(ctx context.Context) {
	if time.Since(w.swept) < sweepEvery {
		return
	}
	w.swept = time.Now()
	lanes, err := w.queue.backend.BlockedLanes(ctx, w.consumer)
	for _, lane := range lanes {
		if err == nil {
			err = w.queue.backend.Promote(ctx, w.consumer, lane)
		}
	}
	if err != nil && ctx.Err() == nil {
		w.settings.Logger.Error("Blocked messages could not be looked for", err, watermill.LogFields{"consumer": w.name})
	}
}
