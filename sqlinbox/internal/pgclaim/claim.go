// Package pgclaim is the claim as pgx sends it: together with BEGIN, and for a taken key a read together with ROLLBACK.
package pgclaim

import (
	"context"
	"errors"
	"strconv"
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

// Begin sends BEGIN and the INSERT, and with it that of the proposed operation, if any. The transaction is there also
// beside an error, to be rolled back.
func (c *Claimer) Begin(ctx context.Context, conn Sender, options pgx.TxOptions, claim *engine.Claim) (tx pgx.Tx, claimed bool, proposal engine.Proposal, err error) {
	batch := c.batch(options)
	batch.Queue(c.SQL.Claim.SQL,
		UUID(claim.Key), UUID(claim.Fingerprint), timestamp(claim.MessageTime),
		claim.Consumer, claim.Source, claim.MessageID, claim.Topic, claim.Scope, UUID(claim.HorizonID), claim.LockID)

	proposed := claim.Operation != nil
	if proposed {
		batch.Queue(c.SQL.ClaimOperation.SQL, OperationArgs(claim.Operation)...)
	}
	tx, inserted, err := send(ctx, conn, batch)
	if err != nil {
		return tx, false, engine.NoProposal, err
	}
	if proposed {
		proposal = engine.ProposalTaken
		if inserted[len(inserted)-1] {
			proposal = engine.ProposalClaimed
		}
		inserted = inserted[:len(inserted)-1]
	}
	return tx, inserted[len(inserted)-1], proposal, nil
}

// BeginOperation is Begin for an operation without a message.
func (c *Claimer) BeginOperation(ctx context.Context, conn Sender, options pgx.TxOptions, claim *engine.OperationClaim) (tx pgx.Tx, claimed bool, err error) {
	batch := c.batch(options)
	batch.Queue(c.SQL.ClaimOperation.SQL, OperationArgs(claim)...)
	tx, inserted, err := send(ctx, conn, batch)
	return tx, err == nil && inserted[len(inserted)-1], err
}

func (c *Claimer) batch(options pgx.TxOptions) *pgx.Batch {
	batch := &pgx.Batch{}
	batch.BeginTx(options)
	if c.IdleTimeout != "" {
		batch.Queue(c.IdleTimeout)
	}
	return batch
}

// send tells for each statement whether it inserted a row.
func send(ctx context.Context, conn Sender, batch *pgx.Batch) (tx pgx.Tx, inserted []bool, err error) {
	results := conn.SendBatch(ctx, batch)
	tx = results.Tx()
	inserted = make([]bool, 0, 4)
	for range batch.QueuedQueries {
		var tag pgconn.CommandTag
		if tag, err = results.Exec(); err != nil {
			break
		}
		inserted = append(inserted, tag.RowsAffected() == 1)
	}
	if closeErr := results.Close(); err == nil {
		err = closeErr
	}
	return tx, inserted, err
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

// Taken ends the transaction and reads what stands under the key, in one round trip. The reads are never prepared, see
// dialect.PostgreSQL.
//
// Late is asked behind Find, by a newer snapshot: a row that Find no longer sees because it was forgotten has raised the
// horizon before.
func (c *Claimer) Taken(ctx context.Context, pg *pgconn.PgConn, claim *engine.Claim) (*engine.Row, error) {
	batch := &pgconn.Batch{}
	batch.ExecParams("rollback", nil, nil, nil, nil)
	c.queueRead(batch, claim)
	results, err := pg.ExecBatch(ctx, batch).ReadAll()
	if err != nil {
		return nil, err
	}
	return readRow(results[1:], claim)
}

// Look is Taken outside any transaction.
func (c *Claimer) Look(ctx context.Context, pg *pgconn.PgConn, claim *engine.Claim) (*engine.Row, error) {
	batch := &pgconn.Batch{}
	c.queueRead(batch, claim)
	results, err := pg.ExecBatch(ctx, batch).ReadAll()
	if err != nil {
		return nil, err
	}
	return readRow(results, claim)
}

// Probe asks, outside any transaction and in one round trip, whether the row of a key is there, or nobody holds the key.
func (c *Claimer) Probe(ctx context.Context, pg *pgconn.PgConn, claim *engine.Claim) (row *engine.Row, free bool, err error) {
	batch := &pgconn.Batch{}
	batch.ExecParams(c.SQL.Find.SQL, [][]byte{[]byte(claim.Key.String())}, nil, nil, inBinary())
	batch.ExecParams(c.SQL.TryLock.SQL, [][]byte{strconv.AppendInt(nil, claim.LockID, 10)}, nil, nil, inBinary())
	results, err := pg.ExecBatch(ctx, batch).ReadAll()
	switch {
	case err != nil:
		return nil, false, err
	case len(results) != 2 || len(results[1].Rows) != 1 || len(results[1].Rows[0]) != 1:
		return nil, false, errUnexpected
	case len(results[0].Rows) == 1:
		row, err = rowOf(results[0].Rows[0])
		return row, false, err
	}
	return nil, isTrue(results[1].Rows[0][0]), nil
}

// queueRead asks what stands under the key, and where a message has a time, whether it is late.
func (c *Claimer) queueRead(batch *pgconn.Batch, claim *engine.Claim) {
	batch.ExecParams(c.SQL.Find.SQL, [][]byte{[]byte(claim.Key.String())}, nil, nil, inBinary())
	if !claim.MessageTime.IsZero() {
		batch.ExecParams(c.SQL.Late.SQL, [][]byte{[]byte(claim.HorizonID.String()), timestampText(claim.MessageTime)}, nil, nil, inBinary())
	}
}

// readRow reads the answers to queueRead.
func readRow(results []*pgconn.Result, claim *engine.Claim) (*engine.Row, error) {
	want := 1
	if !claim.MessageTime.IsZero() {
		want = 2
	}
	if len(results) != want {
		return nil, errUnexpected
	}
	if len(results[0].Rows) == 1 {
		return rowOf(results[0].Rows[0])
	}
	row := &engine.Row{}
	if want == 2 {
		if len(results[1].Rows) != 1 || len(results[1].Rows[0]) != 1 {
			return nil, errUnexpected
		}
		row.Late = isTrue(results[1].Rows[0][0])
	}
	return row, nil
}

// BeginLeased sends BEGIN, the fence of a lease and the mark in the memory row; held tells whether the fence found the row.
func (c *Claimer) BeginLeased(ctx context.Context, conn Sender, options pgx.TxOptions, q dialect.Queue, row *engine.QueueRow, token engine.Token, end engine.End) (tx pgx.Tx, held bool, err error) {
	batch := c.batch(options)
	batch.Queue(q.Fence(end == engine.EndPublish, end == engine.EndBury).SQL, row.Seq, UUID(token))
	at := len(batch.QueuedQueries) - 1
	if end != engine.EndBury {
		batch.Queue(q.Processed.SQL, UUID(row.Key))
	}
	tx, touched, err := send(ctx, conn, batch)
	return tx, err == nil && touched[at], err
}

// OperationArgs are the arguments of an operation's claim.
func OperationArgs(c *engine.OperationClaim) []any {
	return []any{UUID(c.Key), UUID(c.Fingerprint), c.Scope, c.ID, c.LockID}
}

// TakenOperation is Taken for an operation; nil: nothing stands under the key.
func (c *Claimer) TakenOperation(ctx context.Context, pg *pgconn.PgConn, claim *engine.OperationClaim) (*engine.OperationRow, error) {
	batch := &pgconn.Batch{}
	batch.ExecParams("rollback", nil, nil, nil, nil)
	c.queueFind(batch, claim)
	return operationRow(pg.ExecBatch(ctx, batch).ReadAll())
}

// ReadOperation reads what stands under the key, inside a transaction.
func (c *Claimer) ReadOperation(ctx context.Context, pg *pgconn.PgConn, claim *engine.OperationClaim) (*engine.OperationRow, error) {
	batch := &pgconn.Batch{}
	c.queueFind(batch, claim)
	return operationRow(pg.ExecBatch(ctx, batch).ReadAll())
}

func (c *Claimer) queueFind(batch *pgconn.Batch, claim *engine.OperationClaim) {
	batch.ExecParams(c.SQL.FindOperation.SQL, [][]byte{[]byte(claim.Key.String())}, nil, nil, inBinary())
}

// operationRow is the one row of the last result, if any.
func operationRow(results []*pgconn.Result, err error) (*engine.OperationRow, error) {
	if err != nil {
		return nil, err
	}
	rows := results[len(results)-1].Rows
	if len(rows) == 0 {
		return nil, nil //nolint:nilnil // nothing is there
	}
	values := rows[0]
	if len(values) != 5 {
		return nil, errUnexpected
	}
	row := &engine.OperationRow{Scope: string(values[1]), ID: string(values[2]), Result: values[3], Messages: values[4]}
	copy(row.Fingerprint[:], values[0])
	return row, nil
}

var errUnexpected = errors.New("unexpected answer to the read of a taken key")

// inBinary are the formats of results.
func inBinary() []int16 { return []int16{pgx.BinaryFormatCode} }

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
