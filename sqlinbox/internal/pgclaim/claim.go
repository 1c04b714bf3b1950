// Package pgclaim is the claim as pgx sends it: together with BEGIN, and for a taken key a read together with ROLLBACK.
package pgclaim

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/watermill-contrib/watermill-inbox/sqlinbox/internal/dialect"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox/internal/engine"
)

// Sender is what a pgx connection or pool has for it.
type Sender interface {
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
}

// Claimer sends claims.
type Claimer struct {
	SQL         dialect.Statements
	IdleTimeout string // a statement, or empty
}

// Begin sends BEGIN and the INSERT. The transaction is there also beside an error, to be rolled back.
func (c *Claimer) Begin(ctx context.Context, conn Sender, options pgx.TxOptions, claim *engine.Claim) (tx pgx.Tx, claimed bool, err error) {
	batch := &pgx.Batch{}
	batch.BeginTx(options)
	if c.IdleTimeout != "" {
		batch.Queue(c.IdleTimeout)
	}
	batch.Queue(c.SQL.Claim.SQL,
		UUID(claim.Key), UUID(claim.Fingerprint), timestamp(claim.MessageTime),
		claim.Consumer, claim.Source, claim.MessageID, claim.Topic, claim.Scope, UUID(claim.HorizonID), claim.LockID)

	results := conn.SendBatch(ctx, batch)
	tx = results.Tx()
	var tag pgconn.CommandTag
	for range batch.QueuedQueries {
		if tag, err = results.Exec(); err != nil {
			break
		}
	}
	if closeErr := results.Close(); err == nil {
		err = closeErr
	}
	return tx, tag.RowsAffected() == 1, err
}

// Rollback ends a transaction whose claim failed. Its connection may be lost, so there is a limit to the wait.
func Rollback(ctx context.Context, conn *pgx.Conn, tx pgx.Tx) {
	if conn.IsClosed() {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), engine.DefaultCommitTimeout)
	defer cancel()
	_ = tx.Rollback(ctx)
}

// Taken ends the transaction and reads what stands under the key, in one round trip; for a key that nothing stands
// under, it takes a second one to tell why. The reads are never prepared, see dialect.PostgreSQL.
func (c *Claimer) Taken(ctx context.Context, pg *pgconn.PgConn, claim *engine.Claim) (*engine.Row, error) {
	key := []byte(claim.Key.String())
	batch := &pgconn.Batch{}
	batch.ExecParams("rollback", nil, nil, nil, nil)
	batch.ExecParams(c.SQL.Find.SQL, [][]byte{key}, nil, nil, binary)
	results, err := pg.ExecBatch(ctx, batch).ReadAll()
	if err != nil {
		return nil, err
	}
	if len(results) == 2 && len(results[1].Rows) == 1 {
		return rowOf(results[1].Rows[0])
	}
	why := pg.ExecParams(ctx, c.SQL.Lookup.SQL, [][]byte{
		key, timestampText(claim.MessageTime), []byte(claim.HorizonID.String()),
	}, nil, nil, binary).Read()
	if why.Err != nil {
		return nil, why.Err
	}
	if len(why.Rows) != 1 {
		return nil, errUnexpected
	}
	return rowOf(why.Rows[0])
}

var (
	binary        = []int16{pgx.BinaryFormatCode}
	errUnexpected = errors.New("unexpected answer to the read of a taken key")
)

func rowOf(values [][]byte) (*engine.Row, error) {
	if len(values) != 9 {
		return nil, errUnexpected
	}
	row := &engine.Row{
		Found: isTrue(values[0]), Processed: isTrue(values[1]), Late: isTrue(values[2]),
		Consumer: string(values[4]), Source: string(values[5]), MessageID: string(values[6]),
	}
	copy(row.Fingerprint[:], values[3])
	row.RecordedBy, row.Recorded = string(values[7]), values[8]
	return row, nil
}

func isTrue(binary []byte) bool { return len(binary) == 1 && binary[0] == 1 }

// UUID is how 16 bytes are passed in every query mode: those that do not ask the server for the types of arguments know
// this one.
func UUID(v [16]byte) pgtype.UUID { return pgtype.UUID{Bytes: v, Valid: true} }

// timestamp is NULL for the zero time.
func timestamp(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

func timestampText(t time.Time) []byte {
	if t.IsZero() {
		return nil
	}
	return []byte(t.UTC().Format("2006-01-02 15:04:05.999999Z07:00"))
}
