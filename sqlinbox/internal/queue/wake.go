package queue

import (
	"sync"

	inbox "github.com/watermill-contrib/watermill-inbox"
)

// wakers wake the subscribers of this process when there is something new for their consumer.
type wakers struct {
	mu       sync.Mutex
	sleeping map[inbox.StorageKey]map[chan struct{}]bool
}

// add gives a channel that gets a token for every time there may be something new; several times may share one.
func (w *wakers) add(consumer inbox.StorageKey) chan struct{} {
	ch := make(chan struct{}, 1)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.sleeping == nil {
		w.sleeping = map[inbox.StorageKey]map[chan struct{}]bool{}
	}
	if w.sleeping[consumer] == nil {
		w.sleeping[consumer] = map[chan struct{}]bool{}
	}
	w.sleeping[consumer][ch] = true
	return ch
}

func (w *wakers) remove(consumer inbox.StorageKey, ch chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.sleeping[consumer], ch)
	if len(w.sleeping[consumer]) == 0 {
		delete(w.sleeping, consumer)
	}
}

func (w *wakers) wake(consumer inbox.StorageKey) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for ch := range w.sleeping[consumer] {
		select {
		case ch <- struct{}{}:
		default:
		}
	}
}

func (w *wakers) wakeAll(items []*Item) {
	for _, item := range items {
		w.wake(item.Consumer)
	}
}
