//go:build !linux

package inboxtest

import (
	"sync"
	"time"
)

// alarm waits for points in time with the precision of the runtime's timers.
type alarm struct {
	mu     sync.Mutex
	done   chan struct{}
	closed bool
}

// waitUntil returns at the given time, or false as soon as the alarm is closed.
func (a *alarm) waitUntil(t time.Time) bool {
	d := time.Until(t)
	if t.IsZero() || d <= 0 {
		return true
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-a.closing():
		return false
	}
}

func (a *alarm) closing() <-chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.done == nil {
		a.done = make(chan struct{})
		if a.closed {
			close(a.done)
		}
	}
	return a.done
}

func (a *alarm) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.done != nil && !a.closed {
		close(a.done)
	}
	a.closed = true
}
