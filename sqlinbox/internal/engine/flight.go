package engine

import (
	"context"
	"errors"
	"sync"
	"time"

	inbox "github.com/watermill-contrib/watermill-inbox"
)

// flight lets one copy of a message at a time through to the database; the others of this process wait here, before
// they take a connection. When the one in front leaves, however it ended, the copy that waited longest is next.
type flight struct {
	mu     sync.Mutex
	copies map[inbox.StorageKey]*copies
	pool   sync.Pool
}

// copies are those of one message: one in front, and the places of those behind it.
type copies struct {
	since  time.Time
	behind []chan struct{} // closed for the one that is next
}

// errWaited stands for a wait that took as long as it may.
var errWaited = errors.New("waited as long as allowed")

// enter waits until no other copy of the message is in front, at most for limit or until ctx ends, and tells how long
// that took. After nil the caller must call leave, by defer: a panic of the handler must not keep the others waiting.
func (f *flight) enter(ctx context.Context, key inbox.StorageKey, limit time.Duration) (time.Duration, error) {
	f.mu.Lock()
	c := f.copies[key]
	if c == nil {
		if f.copies == nil {
			f.copies = map[inbox.StorageKey]*copies{}
		}
		f.copies[key] = f.newCopies()
		f.mu.Unlock()
		return 0, nil
	}
	if limit <= 0 {
		f.mu.Unlock()
		return 0, errWaited
	}
	place := make(chan struct{})
	c.behind = append(c.behind, place)
	f.mu.Unlock()

	began := time.Now()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	var err error
	select {
	case <-place:
	case <-ctx.Done():
		err = f.giveUp(key, place, ctx.Err())
	case <-timer.C:
		err = f.giveUp(key, place, errWaited)
	}
	return time.Since(began), err
}

// giveUp takes the place out of the line. If its turn came at this very moment, it is passed on.
func (f *flight) giveUp(key inbox.StorageKey, place chan struct{}, cause error) error {
	f.mu.Lock()
	c := f.copies[key]
	if c != nil {
		for i, other := range c.behind {
			if other == place {
				c.behind = append(c.behind[:i], c.behind[i+1:]...)
				f.mu.Unlock()
				return cause
			}
		}
	}
	f.mu.Unlock()
	f.leave(key)
	return cause
}

// leave lets the next copy through.
func (f *flight) leave(key inbox.StorageKey) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.copies[key]
	if len(c.behind) == 0 {
		delete(f.copies, key)
		f.pool.Put(c)
		return
	}
	next := c.behind[0]
	c.behind = append(c.behind[:0], c.behind[1:]...)
	c.since = time.Now()
	close(next)
}

func (f *flight) newCopies() *copies {
	c, _ := f.pool.Get().(*copies)
	if c == nil {
		c = &copies{}
	}
	c.since = time.Now()
	return c
}

// inFlight tells how many messages are in front, and since when the oldest of them.
func (f *flight) inFlight() (n int, oldest time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.copies {
		if oldest.IsZero() || c.since.Before(oldest) {
			oldest = c.since
		}
	}
	return len(f.copies), oldest
}
