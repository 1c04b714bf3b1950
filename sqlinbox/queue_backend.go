package sqlinbox

import (
	"context"
	"database/sql"
	"errors"
	"time"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox/internal/dialect"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox/internal/engine"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox/internal/queue"
)

var (
	_ queue.Backend       = (*backend)(nil)
	_ engine.Reader       = (*backend)(nil)
	_ engine.LeaseBackend = (*backend)(nil)
	_ engine.LeaseTx      = (*transaction)(nil)
)

// inTx runs fn in a transaction that does not die with ctx; once more, from its beginning, after a deadlock.
func (b *backend) inTx(ctx context.Context, fn func(t *transaction) error) error {
	const most = 3
	for again := 0; ; again++ {
		err := b.inTxOnce(ctx, fn)
		if again == most || ctx.Err() != nil || b.Fault(err) != engine.FaultSerialization {
			return err
		}
	}
}

func (b *backend) inTxOnce(ctx context.Context, fn func(t *transaction) error) error {
	conn, err := b.db.Conn(ctx)
	if err != nil {
		return err
	}
	t, err := b.beginAt(ctx, conn, engine.DefaultInFlightWait, b.queueOptions)
	if err != nil {
		_ = conn.Close()
		return err
	}
	defer t.Rollback(ctx) //nolint:errcheck // after Commit there is nothing to roll back
	if err := fn(t); err != nil {
		return err
	}
	return t.Commit(ctx, nil)
}

// Look is engine.Reader's Look.
func (b *backend) Look(ctx context.Context, c *engine.Claim) (*engine.Row, error) {
	conn, err := b.db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Close() //nolint:errcheck // the connection only goes back
	return b.lookup(ctx, &transaction{backend: b, conn: conn}, c)
}

// Lease is queue.Backend's Lease.
func (b *backend) Lease(ctx context.Context, consumer inbox.StorageKey, limit int, token engine.Token, d time.Duration) (leased []*engine.QueueRow, err error) {
	if b.config.Dialect == PostgreSQL {
		leased, err = b.leaseAll(ctx, consumer, limit, token, d)
		return leased, b.missingTable(ctx, err)
	}
	err = b.inTx(ctx, func(t *transaction) error {
		leased, err = b.leaseEach(ctx, t, consumer, limit, token, d)
		return err
	})
	if err != nil {
		return nil, b.missingTable(ctx, err)
	}
	return leased, nil
}

func (b *backend) leaseAll(ctx context.Context, consumer inbox.StorageKey, limit int, token engine.Token, d time.Duration) ([]*engine.QueueRow, error) {
	args := []any{b.bytes16(consumer), limit, b.bytes16(token), d.Milliseconds(), nil}
	if leased, done, err := b.leaseTogether(ctx, args...); done {
		return leased, err
	}
	rows, err := b.db.QueryContext(ctx, b.queue.Lease.SQL, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close() //nolint:errcheck // rows.Err tells
	var leased []*engine.QueueRow
	for rows.Next() {
		row, err := scanLeased(rows)
		if err != nil {
			return nil, err
		}
		leased = append(leased, row)
	}
	return leased, rows.Err()
}

func (b *backend) leaseEach(ctx context.Context, t *transaction, consumer inbox.StorageKey, limit int, token engine.Token, d time.Duration) ([]*engine.QueueRow, error) {
	seqs, err := b.pick(ctx, t, consumer, limit)
	if err != nil {
		return nil, err
	}
	var leased []*engine.QueueRow
	for _, seq := range seqs {
		lease, read := b.queue.Lease, b.queue.Leased
		if _, err := t.tx.ExecContext(ctx, lease.SQL, lease.Args(seq, b.bytes16(token), d.Milliseconds())...); err != nil {
			return nil, err
		}
		row, err := scanLeased(t.tx.QueryRowContext(ctx, read.SQL, read.Args(seq)...))
		if err != nil {
			return nil, err
		}
		leased = append(leased, row)
	}
	return leased, nil
}

func (b *backend) pick(ctx context.Context, t *transaction, consumer inbox.StorageKey, limit int) ([]int64, error) {
	pick := b.queue.Pick
	rows, err := t.tx.QueryContext(ctx, pick.SQL, pick.Args(b.bytes16(consumer), limit)...)
	if err != nil {
		return nil, err
	}
	return int64s(rows)
}

func scanLeased(row interface{ Scan(dest ...any) error }) (*engine.QueueRow, error) {
	var r engine.QueueRow
	var key, consumer, fingerprint []byte
	var handler sql.NullString
	var lane sql.NullInt64
	err := row.Scan(&r.Seq, &key, &consumer, &lane, &r.State, &r.Attempts, &r.Unfinished, &r.Message,
		&fingerprint, &r.Consumer, &r.Source, &r.MessageID, &r.Topic, &handler, &r.Recorded)
	if err != nil {
		return nil, err
	}
	r.RecordedBy, r.Lane = handler.String, lane.Int64
	if r.ConsumerID, err = parse16(consumer); err != nil {
		return nil, err
	}
	if r.Key, err = parse16(key); err != nil {
		return nil, err
	}
	if r.Fingerprint, err = parse16(fingerprint); err != nil {
		return nil, err
	}
	return &r, nil
}

// one executes a statement about one leased row and tells whether it was there.
func (b *backend) one(ctx context.Context, s dialect.Statement, row *engine.QueueRow, token engine.Token, args ...any) (bool, error) {
	result, err := b.db.ExecContext(ctx, s.SQL, s.Args(append([]any{row.Seq, b.bytes16(token)}, args...)...)...)
	if err != nil {
		return false, err
	}
	n, err := result.RowsAffected()
	return n == 1, err
}

// Renew is queue.Backend's Renew.
func (b *backend) Renew(ctx context.Context, row *engine.QueueRow, token engine.Token, d time.Duration) (bool, error) {
	return b.one(ctx, b.queue.Renew, row, token, d.Milliseconds())
}

// Retry is queue.Backend's Retry.
func (b *backend) Retry(ctx context.Context, row *engine.QueueRow, token engine.Token, d time.Duration, cause string) error {
	_, err := b.one(ctx, b.queue.Retry, row, token, d.Milliseconds(), cause)
	return err
}

// Release is queue.Backend's Release.
func (b *backend) Release(ctx context.Context, row *engine.QueueRow, token engine.Token) error {
	_, err := b.one(ctx, b.queue.Release, row, token)
	return err
}

// Postpone is queue.Backend's Postpone.
func (b *backend) Postpone(ctx context.Context, row *engine.QueueRow, token engine.Token, d time.Duration) error {
	return b.inTx(ctx, func(t *transaction) error {
		release := b.queue.Release
		held, err := t.exec(ctx, release, row.Seq, b.bytes16(token))
		if err != nil || !held {
			return err
		}
		if _, err := t.exec(ctx, b.queue.Delay, row.Seq, d.Milliseconds()); err != nil {
			return err
		}
		return t.FreeOperations(ctx, row.Key)
	})
}

// Promote is queue.Backend's Promote.
func (b *backend) Promote(ctx context.Context, consumer inbox.StorageKey, lane int64) error {
	return b.inTx(ctx, func(t *transaction) error { return t.promote(ctx, consumer, lane) })
}

func (t *transaction) promote(ctx context.Context, consumer inbox.StorageKey, lane int64) error {
	if err := t.lockLane(ctx, t.backend.laneOrder(lane)); err != nil {
		return err
	}
	_, err := t.exec(ctx, t.backend.queue.Promote, t.backend.bytes16(consumer), lane)
	return err
}

// BlockedLanes is queue.Backend's BlockedLanes.
func (b *backend) BlockedLanes(ctx context.Context, consumer inbox.StorageKey) ([]int64, error) {
	blocked := b.queue.BlockedLanes
	rows, err := b.db.QueryContext(ctx, blocked.SQL, blocked.Args(b.bytes16(consumer))...)
	if err != nil {
		return nil, err
	}
	return int64s(rows)
}

func int64s(rows *sql.Rows) ([]int64, error) {
	defer rows.Close() //nolint:errcheck // rows.Err tells
	var values []int64
	for rows.Next() {
		var v int64
		if err := rows.Scan(&v); err != nil {
			return nil, err
		}
		values = append(values, v)
	}
	return values, rows.Err()
}

// Finish is queue.Backend's Finish.
func (b *backend) Finish(ctx context.Context, row *engine.QueueRow, token engine.Token) error {
	return b.inTx(ctx, func(t *transaction) error {
		taken, err := t.exec(ctx, b.queue.Take, row.Seq, b.bytes16(token))
		if err == nil && !taken {
			err = inbox.ErrLeaseLost
		}
		if err != nil {
			return err
		}
		if row.State == engine.StateWaiting {
			if _, err := t.exec(ctx, b.queue.Processed, b.bytes16(row.Key)); err != nil {
				return err
			}
		}
		err = t.forget(ctx, row.Key)
		if err == nil && row.State == engine.StateWaiting {
			err = t.FreeOperations(ctx, row.Key)
		}
		if err == nil && row.Lane != 0 {
			err = t.promote(ctx, row.ConsumerID, row.Lane)
		}
		return err
	})
}

// forget deletes what is kept beside the memory of a message whose row is gone: its record, and the results of its steps.
func (t *transaction) forget(ctx context.Context, key inbox.StorageKey) error {
	var err error
	b := t.backend
	if b.config.Dialect == PostgreSQL {
		_, err = t.tx.ExecContext(ctx, b.sql.Forget.SQL, uuidArray([]inbox.StorageKey{key}))
	} else {
		_, err = t.exec(ctx, b.sql.Forget, b.bytes16(key))
	}
	if err != nil {
		return err
	}
	return t.ForgetSteps(ctx, key)
}

// NextDue is queue.Backend's NextDue.
func (b *backend) NextDue(ctx context.Context, consumer inbox.StorageKey) (time.Duration, bool, error) {
	var ms int64
	err := b.db.QueryRowContext(ctx, b.queue.NextDue.SQL, b.queue.NextDue.Args(b.bytes16(consumer))...).Scan(&ms)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, false, nil
	}
	return time.Duration(ms) * time.Millisecond, err == nil, err
}

// exec executes a statement in the transaction and tells whether it touched a row.
func (t *transaction) exec(ctx context.Context, s dialect.Statement, args ...any) (bool, error) {
	result, err := t.tx.ExecContext(ctx, s.SQL, s.Args(args...)...)
	if err != nil {
		return false, err
	}
	n, err := result.RowsAffected()
	return n > 0, err
}
