package engine

import (
	"context"
	"math/rand/v2"
	"time"
)

// The pauses between claims of a key that is in flight elsewhere: short at first, since most handlers are quick, and
// growing, since the others are not.
const (
	firstPause = time.Millisecond
	mostPause  = 100 * time.Millisecond
)

// pause gives growing pauses with jitter.
type pause struct{ last time.Duration }

func (p *pause) next() time.Duration {
	p.last = min(max(p.last*3/2, firstPause), mostPause)
	return jitter(p.last)
}

// retryPause is how long to stand back before the n-th retry of a transaction.
func retryPause(n int) time.Duration { return jitter(time.Millisecond << min(n, 6)) }

// jitter gives a random time around d: copies that met should not come back together.
func jitter(d time.Duration) time.Duration { return d/2 + rand.N(d) }

// sleep waits for d or until the context ends.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
