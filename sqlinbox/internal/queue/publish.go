package queue

import (
	"context"
	"errors"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox/internal/engine"
)

// Publish stores entries, all or none: in the transaction of ctx where it carries one, else in one of its own.
func (q *Queue) Publish(ctx context.Context, entries []inbox.Entry) error {
	tx, err := q.engine.TxFor(ctx)
	if err != nil {
		return q.intake.fail(entries[0], err)
	}
	some, err := q.distinct(ctx, entries)
	if err != nil {
		return err
	}
	if tx != nil {
		q.intake.storeIn(ctx, tx, some)
		return firstError(some)
	}
	items := itemsOf(some)
	stored, err := q.backend.Store(ctx, items)
	if err != nil {
		return q.intake.fail(entries[0], q.engine.StoreError(err))
	}
	q.wakers.wakeAll(items)
	for i, p := range some {
		if !stored[i] {
			q.intake.classify(ctx, p)
		}
	}
	return firstError(some)
}

func firstError(some []*pending) error {
	for _, p := range some {
		if p.answer.Err != nil {
			return p.answer.Err
		}
	}
	return nil
}

var errTwice = errors.New("two messages with one UUID and different content were published together")

// distinct gives the entries without copies of each other.
func (q *Queue) distinct(ctx context.Context, entries []inbox.Entry) ([]*pending, error) {
	seen := map[inbox.StorageKey]*engine.Claim{}
	var some []*pending
	for _, entry := range entries {
		p := &pending{entry: entry, answer: &inbox.Stored{}}
		if err := q.intake.prepare(ctx, p); err != nil {
			return nil, q.intake.fail(entry, err)
		}
		claim := p.item.Claim
		if before := seen[claim.Key]; before != nil {
			if before.Fingerprint != claim.Fingerprint {
				return nil, q.intake.fail(entry, errors.Join(inbox.ErrMismatch, errTwice))
			}
			continue
		}
		seen[claim.Key] = claim
		some = append(some, p)
	}
	return some, nil
}
