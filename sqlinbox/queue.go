package sqlinbox

import (
	"context"
	"database/sql"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox/internal/engine"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox/internal/queue"
)

// Queue is the part of a store for messages that are stored now and handled later; every store has one, and its methods.
type Queue struct {
	inner   *queue.Queue
	backend *backend
}

// NewQueue gives the queue of a store that keeps its tables in db and handles messages by e. It is for package pgxinbox.
func NewQueue(db *sql.DB, config Config, e *engine.Engine, owner inbox.Store) *Queue {
	b := newBackend(db, config)
	b.connections.met = e.ConnectionMet
	return newQueue(b, e, owner)
}

func newQueue(b *backend, e *engine.Engine, owner inbox.Store) *Queue {
	return &Queue{inner: queue.New(e, b, owner), backend: b}
}

// Enqueue stores messages for later; see [inbox.QueueStore]. The intake calls it.
func (q *Queue) Enqueue(ctx context.Context, entries []inbox.Entry) []inbox.Stored {
	return q.inner.Enqueue(ctx, entries)
}
