package pgxinbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox/internal/dialect"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox/internal/engine"
)

// backend is engine.Backend on pgx.
type backend struct {
	pool        *pgxpool.Pool
	sql         dialect.Statements
	options     pgx.TxOptions
	idleTimeout string // a statement, or empty
}

// Claim is engine.Backend's Claim. BEGIN and the INSERT go out together; for a taken key ROLLBACK and the read go out
// together. PostgreSQL's claim never waits, so there is no use for a limit of the wait.
func (b *backend) Claim(ctx context.Context, c *engine.Claim, _ time.Duration) (engine.Answer, error) {
	conn, err := b.pool.Acquire(ctx)
	if err != nil {
		return engine.Answer{}, err
	}
	t, claimed, err := b.begin(ctx, conn, c)
	if err == nil && claimed {
		return engine.Answer{Tx: t}, nil
	}
	// Release puts a connection with an open transaction out of use; it is the way out for every failure.
	defer conn.Release()
	if err != nil {
		rollback(ctx, conn.Conn(), t.inner)
		return engine.Answer{}, b.named(err)
	}
	row, err := b.lookup(ctx, conn.Conn().PgConn(), c)
	if err != nil {
		return engine.Answer{}, err
	}
	return engine.Answer{Row: row}, nil
}

func (b *backend) begin(ctx context.Context, conn *pgxpool.Conn, c *engine.Claim) (t *transaction, claimed bool, err error) {
	batch := &pgx.Batch{}
	batch.BeginTx(b.options)
	if b.idleTimeout != "" {
		batch.Queue(b.idleTimeout)
	}
	batch.Queue(b.sql.Claim.SQL,
		uuid(c.Key), uuid(c.Fingerprint), timestamp(c.MessageTime),
		c.Consumer, c.Source, c.MessageID, c.Topic, c.Scope, uuid(c.HorizonID), c.LockID)

	results := conn.SendBatch(ctx, batch)
	t = newTransaction(conn, results.Tx(), b)
	var tag pgconn.CommandTag
	for range batch.QueuedQueries {
		if tag, err = results.Exec(); err != nil {
			break
		}
	}
	if closeErr := results.Close(); err == nil {
		err = closeErr
	}
	return t, tag.RowsAffected() == 1, err
}

// rollback ends a transaction whose claim failed. Its connection may be lost, so there is a limit to the wait.
func rollback(ctx context.Context, conn *pgx.Conn, tx pgx.Tx) {
	if conn.IsClosed() {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), engine.DefaultCommitTimeout)
	defer cancel()
	_ = tx.Rollback(ctx)
}

// lookup ends the transaction and reads what stands under the key, in one round trip. The read is never prepared: a
// plan made while the table was small would stay a sequential scan.
func (b *backend) lookup(ctx context.Context, pg *pgconn.PgConn, c *engine.Claim) (*engine.Row, error) {
	batch := &pgconn.Batch{}
	batch.ExecParams("rollback", nil, nil, nil, nil)
	batch.ExecParams(b.sql.Lookup.SQL, [][]byte{
		[]byte(c.Key.String()), timestampText(c.MessageTime), []byte(c.HorizonID.String()),
	}, nil, nil, []int16{pgx.BinaryFormatCode})
	results, err := pg.ExecBatch(ctx, batch).ReadAll()
	if err != nil {
		return nil, err
	}
	if len(results) != 2 || len(results[1].Rows) != 1 || len(results[1].Rows[0]) != 9 {
		return nil, errors.New("unexpected answer to the read of a taken key")
	}
	values := results[1].Rows[0]
	row := &engine.Row{
		Found: isTrue(values[0]), Processed: isTrue(values[1]), Late: isTrue(values[2]),
		Consumer: string(values[4]), Source: string(values[5]), MessageID: string(values[6]),
	}
	copy(row.Fingerprint[:], values[3])
	row.RecordedBy, row.Recorded = string(values[7]), values[8]
	return row, nil
}

func isTrue(binary []byte) bool { return len(binary) == 1 && binary[0] == 1 }

// uuid is how 16 bytes are passed in every query mode: those that do not ask the server for the types of arguments know
// this one.
func uuid(v [16]byte) pgtype.UUID { return pgtype.UUID{Bytes: v, Valid: true} }

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

// Scheme is engine.Backend's Scheme. The insert commits by itself before the second read: the first writer wins.
func (b *backend) Scheme(ctx context.Context, s engine.Scheme, _ time.Duration) (have string, err error) {
	read := func() error { return b.pool.QueryRow(ctx, b.sql.GetScheme.SQL, uuid(s.ID)).Scan(&have) }
	if err = read(); errors.Is(err, pgx.ErrNoRows) {
		if _, err = b.pool.Exec(ctx, b.sql.PutScheme.SQL, uuid(s.ID), s.Consumer, s.Scheme); err == nil {
			err = read()
		}
	}
	return have, b.named(err)
}

// Forget is engine.Forgetter's Forget.
func (b *backend) Forget(ctx context.Context, keys []inbox.StorageKey) error {
	ids := make([]pgtype.UUID, len(keys))
	for i, key := range keys {
		ids[i] = uuid(key)
	}
	_, err := b.pool.Exec(ctx, b.sql.Forget.SQL, ids)
	return err
}

// Fault is engine.Backend's Fault.
func (b *backend) Fault(err error) engine.Fault {
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) {
		return engine.SQLStateFault(pgErr.Code)
	}
	return engine.FaultNone
}

// named says what to run when a table is missing.
func (b *backend) named(err error) error {
	if b.Fault(err) == engine.FaultSchema {
		return fmt.Errorf("%w: run pgxinbox.Migrate or set Config.InitializeSchema: %w", inbox.ErrSchema, err)
	}
	return err
}
