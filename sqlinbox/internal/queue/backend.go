// Package queue is the algorithm of the two-phase mode, the same for every driver: store messages together, lease them,
// renew the leases, and end each row by what became of its message.
package queue

import (
	"context"
	"time"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox/internal/engine"
)

// Backend is the SQL of a queue. Its methods commit what they do.
type Backend interface {
	engine.LeaseSQL
	// Store stores the items, whose keys differ, and tells for each whether it was new. An error: none is stored, or the
	// reply to COMMIT was lost.
	Store(ctx context.Context, items []*Item) (stored []bool, err error)
	// Lease takes up to limit due rows of a consumer, the one that is due longest first.
	Lease(ctx context.Context, consumer inbox.StorageKey, limit int, token engine.Token, d time.Duration) ([]*engine.QueueRow, error)
	// Renew prolongs the lease of a row, unless it is lost or locked.
	Renew(ctx context.Context, row *engine.QueueRow, token engine.Token, d time.Duration) (renewed bool, err error)
	// Retry lets a row wait for d; Release gives it back as if it had never been leased; Postpone does both, and gives up
	// the operations of the message. They do nothing where the lease is lost.
	Retry(ctx context.Context, row *engine.QueueRow, token engine.Token, d time.Duration, cause string) error
	Release(ctx context.Context, row *engine.QueueRow, token engine.Token) error
	Postpone(ctx context.Context, row *engine.QueueRow, token engine.Token, d time.Duration) error
	// Promote makes the first row of a lane ready if it is blocked.
	Promote(ctx context.Context, consumer inbox.StorageKey, lane int64) error
	// BlockedLanes gives the lanes of a consumer whose first row is blocked though it waits.
	BlockedLanes(ctx context.Context, consumer inbox.StorageKey) ([]int64, error)
	// Finish ends a row whose message is handled and published: it is deleted, with its record, and its memory row becomes
	// processed if it is not.
	Finish(ctx context.Context, row *engine.QueueRow, token engine.Token) error
	// NextDue tells how long it is to the first due time of a consumer; false: it has no row.
	NextDue(ctx context.Context, consumer inbox.StorageKey) (time.Duration, bool, error)
}

// Item is one message to be stored.
type Item = engine.Item
