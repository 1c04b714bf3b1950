package sqlinbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox/internal/engine"
)

// QueueStats are the messages of one consumer in the queue.
type QueueStats struct {
	Consumer string
	// Waiting are to be handled or at work; Publishing are handled, but what they returned is not proved to be published;
	// Dead wait for an operator.
	Waiting, Publishing, Dead int64
	// OldestWaiting is how long the oldest waiting message has been stored.
	OldestWaiting time.Duration
}

// Stats gives the numbers of each consumer that has messages in the queue, by name. It reads the whole queue.
func (q *Queue) Stats(ctx context.Context) ([]QueueStats, error) {
	b := q.backend
	rows, err := b.db.QueryContext(ctx, b.queue.Counts.SQL)
	if err != nil {
		return nil, fmt.Errorf("inbox: stats: %w", b.missingTable(ctx, err))
	}
	defer rows.Close() //nolint:errcheck // rows.Err tells
	var stats []QueueStats
	for rows.Next() {
		var s QueueStats
		var ms int64
		if err := rows.Scan(&s.Consumer, &s.Waiting, &s.Publishing, &s.Dead, &ms); err != nil {
			return nil, fmt.Errorf("inbox: stats: %w", err)
		}
		s.Consumer, s.OldestWaiting = engine.DecodeText(s.Consumer), time.Duration(ms)*time.Millisecond
		stats = append(stats, s)
	}
	return stats, rows.Err()
}

// QueuedMessage is a message in the queue.
type QueuedMessage struct {
	Seq       int64 // names it for Requeue and Kill
	Key       inbox.Key
	State     QueueState
	Attempts  int
	Age       time.Duration // since it was stored, or requeued
	LastError string        // of its last attempt, cut; readable text
}

// QueueState is what a queued message waits for.
type QueueState string

// The states of a queued message.
const (
	QueueWaiting    QueueState = "waiting"    // to be handled, or for its next attempt
	QueuePublishing QueueState = "publishing" // for the proof that what it returned is published
	QueueDead       QueueState = "dead"       // for an operator
)

// mostStuck is how many messages Stuck gives.
const mostStuck = 1000

// Stuck gives the messages that have been in the queue for longer than a time, dead ones included, the oldest first: at
// most 1,000.
func (q *Queue) Stuck(ctx context.Context, olderThan time.Duration) ([]QueuedMessage, error) {
	b := q.backend
	rows, err := b.db.QueryContext(ctx, b.queue.Old.SQL, b.queue.Old.Args(olderThan.Milliseconds(), mostStuck)...)
	if err != nil {
		return nil, fmt.Errorf("inbox: stuck: %w", b.missingTable(ctx, err))
	}
	defer rows.Close() //nolint:errcheck // rows.Err tells
	var stuck []QueuedMessage
	for rows.Next() {
		var m QueuedMessage
		var state int
		var ms int64
		if err := rows.Scan(&m.Seq, &state, &m.Attempts, &ms, &m.LastError, &m.Key.Consumer, &m.Key.Source, &m.Key.ID); err != nil {
			return nil, fmt.Errorf("inbox: stuck: %w", err)
		}
		m.State = [...]QueueState{QueueWaiting, QueuePublishing, QueueDead}[state]
		m.Age = time.Duration(ms) * time.Millisecond
		m.Key = inbox.Key{
			Consumer: engine.DecodeText(m.Key.Consumer), Source: engine.DecodeText(m.Key.Source), ID: engine.DecodeText(m.Key.ID),
		}
		stuck = append(stuck, m)
	}
	return stuck, rows.Err()
}

// Requeue lets a dead message be tried again, with all its attempts and as if it had come now. It tells whether the message was dead: a second call
// does nothing.
func (q *Queue) Requeue(ctx context.Context, seq int64) (bool, error) {
	var requeued bool
	err := q.backend.inTx(ctx, func(t *transaction) (err error) {
		requeued, err = t.exec(ctx, q.backend.queue.Requeue, seq)
		return err
	})
	if err != nil {
		return false, fmt.Errorf("inbox: requeue %d: %w", seq, err)
	}
	return requeued, nil
}

// Kill takes a message out of the queue for good: it counts as handled, its operations may be asked for again, and the
// next message with its order key is ready. It tells whether the message was there. A worker that has it in hand loses it
// before its commit.
func (q *Queue) Kill(ctx context.Context, seq int64) (bool, error) {
	b := q.backend
	killed := false
	err := b.inTx(ctx, func(t *transaction) error {
		var key, consumer []byte
		var lane sql.NullInt64
		err := t.tx.QueryRowContext(ctx, b.queue.RowOf.SQL, b.queue.RowOf.Args(seq)...).Scan(&key, &consumer, &lane)
		if errors.Is(err, sql.ErrNoRows) {
			return nil
		}
		if err != nil {
			return err
		}
		return t.kill(ctx, seq, key, consumer, lane.Int64, &killed)
	})
	if err != nil {
		return false, fmt.Errorf("inbox: kill %d: %w", seq, err)
	}
	return killed, nil
}

func (t *transaction) kill(ctx context.Context, seq int64, rawKey, rawConsumer []byte, lane int64, killed *bool) (err error) {
	key, err := parse16(rawKey)
	if err != nil {
		return err
	}
	consumer, err := parse16(rawConsumer)
	if err != nil {
		return err
	}
	b := t.backend
	if *killed, err = t.exec(ctx, b.queue.Kill, seq); err != nil || !*killed {
		return err
	}
	if _, err := t.exec(ctx, b.queue.Processed, b.bytes16(key)); err != nil {
		return err
	}
	if err := t.forget(ctx, key); err != nil {
		return err
	}
	if err := t.FreeOperations(ctx, key); err != nil || lane == 0 {
		return err
	}
	return t.promote(ctx, consumer, lane)
}

// ErrQueueStuck is what a health check gives when messages wait for too long.
var ErrQueueStuck = errors.New("messages wait in the queue for too long")

// HealthCheck gives a check that fails when a message has been waiting in the queue for longer than a time: nobody works
// on it, or work takes longer than messages come. Dead messages do not count: they wait for an operator, see Stats.
func (q *Queue) HealthCheck(limit time.Duration) func(ctx context.Context) error {
	return func(ctx context.Context) error {
		stats, err := q.Stats(ctx)
		if err != nil {
			return err
		}
		for _, s := range stats {
			if s.OldestWaiting > limit {
				return fmt.Errorf("%w: consumer %s has %d, the oldest for %v (the limit is %v)", ErrQueueStuck,
					s.Consumer, s.Waiting, s.OldestWaiting.Round(time.Millisecond), limit)
			}
		}
		return nil
	}
}
