package queue

import (
	"context"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox/internal/engine"
)

// Queue is the queue of a store.
type Queue struct {
	engine  *engine.Engine
	backend Backend
	owner   inbox.Store
	wakers  wakers
	intake  intake
}

// New gives the queue of owner, whose messages e handles.
func New(e *engine.Engine, backend Backend, owner inbox.Store) *Queue {
	q := &Queue{engine: e, backend: backend, owner: owner}
	q.intake = intake{engine: e, backend: backend, wake: &q.wakers}
	return q
}

// Enqueue is inbox.QueueStore's Enqueue.
func (q *Queue) Enqueue(ctx context.Context, entries []inbox.Entry) []inbox.Stored {
	return q.intake.Enqueue(ctx, entries)
}

// NewSubscriber gives a subscriber.
func (q *Queue) NewSubscriber(settings Settings) *Subscriber {
	return &Subscriber{queue: q, settings: settings, closing: make(chan struct{})}
}
