package pgclaim

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox/internal/dialect"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox/internal/engine"
)

// Store stores the items in a transaction of its own, in one round trip, and tells for each whether it was new.
func Store(ctx context.Context, conn *pgx.Conn, q dialect.Queue, lanes []int64, items []*engine.Item) ([]bool, error) {
	batch := queueBatch(q)
	batch.Queue(q.LockTimeout)
	for _, lane := range lanes {
		batch.Queue(q.LockLane.SQL, lane)
	}
	stored := make([]bool, len(items))
	batch.Queue(q.StoreAll.SQL, StoreArgs(items)...).Query(func(rows pgx.Rows) error { return markStored(rows, items, stored) })
	return stored, sendQueueBatch(ctx, conn, batch)
}

// Scanner is a row of an answer.
type Scanner interface{ Scan(dest ...any) error }

// Lease takes rows in a transaction of its own, in one round trip.
func Lease(ctx context.Context, conn *pgx.Conn, q dialect.Queue, scan func(Scanner) (*engine.QueueRow, error), args ...any) (leased []*engine.QueueRow, err error) {
	batch := queueBatch(q)
	batch.Queue(q.Lease.SQL, args...).Query(func(rows pgx.Rows) error {
		defer rows.Close()
		for rows.Next() {
			row, err := scan(rows)
			if err != nil {
				return err
			}
			leased = append(leased, row)
		}
		return rows.Err()
	})
	if err := sendQueueBatch(ctx, conn, batch); err != nil {
		return nil, err
	}
	return leased, nil
}

// queueBatch begins a transaction of the queue's own, which must see what was committed before, with the settings for it.
func queueBatch(q dialect.Queue) *pgx.Batch {
	batch := &pgx.Batch{}
	batch.Queue("BEGIN ISOLATION LEVEL READ COMMITTED")
	batch.Queue(q.PlanOnce)
	return batch
}

// sendQueueBatch sends the batch with COMMIT.
func sendQueueBatch(ctx context.Context, conn *pgx.Conn, batch *pgx.Batch) error {
	batch.Queue("COMMIT")
	err := conn.SendBatch(ctx, batch).Close()
	if err != nil && !conn.IsClosed() && conn.PgConn().TxStatus() != 'I' {
		rollbackCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), engine.DefaultCommitTimeout)
		defer cancel()
		if _, rollbackErr := conn.Exec(rollbackCtx, "ROLLBACK"); rollbackErr != nil {
			_ = conn.Close(rollbackCtx) // its transaction must not be met by the next one
		}
	}
	return err
}

// StoreIn stores the items in an open transaction.
func StoreIn(ctx context.Context, tx pgx.Tx, q dialect.Queue, lanes []int64, items []*engine.Item) ([]bool, error) {
	for _, lane := range lanes {
		if _, err := tx.Exec(ctx, q.LockLane.SQL, lane); err != nil {
			return nil, err
		}
	}
	rows, err := tx.Query(ctx, q.StoreAll.SQL, StoreArgs(items)...)
	if err != nil {
		return nil, err
	}
	stored := make([]bool, len(items))
	return stored, markStored(rows, items, stored)
}

func markStored(rows pgx.Rows, items []*engine.Item, stored []bool) error {
	defer rows.Close()
	index := make(map[inbox.StorageKey]int, len(items))
	for i, item := range items {
		index[item.Claim.Key] = i
	}
	for rows.Next() {
		var key pgtype.UUID
		if err := rows.Scan(&key); err != nil {
			return err
		}
		if i, ok := index[key.Bytes]; ok {
			stored[i] = true
		}
	}
	return rows.Err()
}

// StoreArgs are the columns of the items.
func StoreArgs(items []*engine.Item) []any {
	n := len(items)
	keys, fingerprints := make([]pgtype.UUID, n), make([]pgtype.UUID, n)
	horizons, consumers := make([]pgtype.UUID, n), make([]pgtype.UUID, n)
	times := make([]*time.Time, n)
	var texts [5][]string
	for i := range texts {
		texts[i] = make([]string, n)
	}
	lanes, messages := make([]*int64, n), make([][]byte, n)
	for i, item := range items {
		c := item.Claim
		keys[i], fingerprints[i] = UUID(c.Key), UUID(c.Fingerprint)
		horizons[i], consumers[i] = UUID(c.HorizonID), UUID(item.Consumer)
		times[i] = timestamp(c.MessageTime)
		texts[0][i], texts[1][i], texts[2][i], texts[3][i], texts[4][i] = c.Consumer, c.Source, c.MessageID, c.Topic, c.Scope
		if item.Lane != 0 {
			lanes[i] = &item.Lane
		}
		messages[i] = item.Message
	}
	return []any{
		keys, fingerprints, times, texts[0], texts[1], texts[2], texts[3], texts[4], horizons, consumers, lanes, messages,
	}
}
