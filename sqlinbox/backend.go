package sqlinbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox/internal/dialect"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox/internal/engine"
)

// backend is engine.Backend over database/sql.
type backend struct {
	db          *sql.DB
	config      Config
	sql         dialect.Statements
	schema      dialect.Schema
	options     *sql.TxOptions
	idleTimeout string // a statement, or empty
}

func newBackend(db *sql.DB, config Config) *backend {
	d, _ := config.dialect() // Validate has accepted it
	names := dialect.NewNames(config.Schema, config.prefix(), d.Quote)
	b := &backend{
		db: db, config: config,
		sql:     d.Statements(names),
		schema:  d.NewSchema(config.Schema, config.prefix(), 0),
		options: &sql.TxOptions{Isolation: config.Isolation},
	}
	switch config.Dialect {
	case PostgreSQL:
		b.idleTimeout = dialect.IdleTimeout(config.IdleTimeout)
		fallthrough
	case MySQL:
		if config.Isolation == sql.LevelDefault && !config.readCommitted {
			b.options.Isolation = sql.LevelReadCommitted
		}
	case SQLite:
		b.options.Isolation = sql.LevelDefault
	}
	return b
}

// Claim is engine.Backend's Claim: begin, claim, and for a taken key a read after the rollback on the same connection.
func (b *backend) Claim(ctx context.Context, c *engine.Claim, wait time.Duration) (engine.Answer, error) {
	conn, err := b.db.Conn(ctx)
	if err != nil {
		return engine.Answer{}, err
	}
	t, err := b.begin(ctx, conn, wait)
	if err != nil {
		_ = conn.Close()
		return engine.Answer{}, err
	}
	claimed, err := b.insert(ctx, t.tx, c)
	if err == nil && claimed {
		t.claim = c
		return engine.Answer{Tx: t}, nil
	}
	var row *engine.Row
	if err == nil {
		row, err = b.readTaken(ctx, t, c)
	} else {
		_ = t.within(ctx, t.tx.Rollback)
	}
	t.end() // before another connection is asked for: the pool may have no other
	return engine.Answer{Row: row}, b.missingTable(ctx, err)
}

// readTaken ends the transaction and reads what stands under a key that is taken. Neither may outlast ctx, though the
// rollback of database/sql knows none.
func (b *backend) readTaken(ctx context.Context, t *transaction, c *engine.Claim) (*engine.Row, error) {
	if err := t.within(ctx, t.tx.Rollback); err != nil {
		return nil, err
	}
	return b.lookup(ctx, t, c)
}

// begin begins a transaction that does not die with ctx, as database/sql would have it; only the wait for it obeys
// ctx. On SQLite the wait for the other writer ends after the given time with engine's busy.
func (b *backend) begin(ctx context.Context, conn *sql.Conn, wait time.Duration) (*transaction, error) {
	beginCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, cancel)
	ownLimit := func() bool { return false }
	if b.config.Dialect == SQLite {
		timer := time.AfterFunc(max(wait, shortestWriterWait), cancel)
		ownLimit = func() bool { return !timer.Stop() }
	}
	tx, err := conn.BeginTx(beginCtx, b.options)
	limited, ended := ownLimit(), !stop()
	if err == nil && !limited && !ended {
		// From here on nothing calls cancel but the end of the transaction.
		return &transaction{
			backend: b, conn: conn, tx: tx, pg: pgConnOf(conn),
			scope: engine.Scope{Handle: tx}, release: cancel,
		}, nil
	}
	cancel()
	if err == nil {
		_ = tx.Rollback()
		err = context.Canceled
	}
	switch {
	case ended:
		return nil, errors.Join(ctx.Err(), err)
	case limited:
		return nil, errWriterBusy
	}
	return nil, err
}

// shortestWriterWait is how long SQLite's writer is waited for even when nothing else is: it may be at work on any
// other message, for which giving up at once would be too harsh.
const shortestWriterWait = 50 * time.Millisecond

func (b *backend) insert(ctx context.Context, tx *sql.Tx, c *engine.Claim) (bool, error) {
	if b.idleTimeout != "" {
		if _, err := tx.ExecContext(ctx, b.idleTimeout); err != nil {
			return false, err
		}
	}
	args := []any{
		b.bytes16(c.Key), b.bytes16(c.Fingerprint), b.time(c.MessageTime),
		c.Consumer, c.Source, c.MessageID, c.Topic, c.Scope, b.bytes16(c.HorizonID),
	}
	if b.config.Dialect == PostgreSQL {
		args = append(args, c.LockID)
	}
	if b.sql.Probe.SQL != "" {
		if err := tx.QueryRowContext(ctx, b.sql.Probe.SQL, b.sql.Probe.Args(args...)...).Scan(new(int)); err != nil && !errors.Is(err, sql.ErrNoRows) {
			return false, claimBusy(err)
		}
	}
	result, err := tx.ExecContext(ctx, b.sql.Claim.SQL, b.sql.Claim.Args(args...)...)
	if mysqlCode(err) == mysqlDuplicate {
		return false, nil
	}
	if err != nil {
		return false, claimBusy(err)
	}
	n, err := result.RowsAffected()
	return n == 1, err
}

func (b *backend) lookup(ctx context.Context, t *transaction, c *engine.Claim) (*engine.Row, error) {
	args := b.sql.Lookup.Args(b.bytes16(c.Key), b.time(c.MessageTime), b.bytes16(c.HorizonID))
	if t.pg != nil {
		args = append([]any{pgx.QueryExecModeExec}, args...) // not prepared, see dialect.PostgreSQL
	}
	var row engine.Row
	var fingerprint []byte
	var consumer, source, id, handler sql.NullString
	err := t.conn.QueryRowContext(ctx, b.sql.Lookup.SQL, args...).
		Scan(&row.Found, &row.Processed, &row.Late, &fingerprint, &consumer, &source, &id, &handler, &row.Recorded)
	if err != nil {
		return nil, err
	}
	row.Consumer, row.Source, row.MessageID, row.RecordedBy = consumer.String, source.String, id.String, handler.String
	if row.Found {
		if row.Fingerprint, err = parse16(fingerprint); err != nil {
			return nil, fmt.Errorf("fingerprint of %s: %w", c.Key, err)
		}
	}
	return &row, nil
}

// Scheme is engine.Backend's Scheme. The insert commits before the second read: the first writer wins.
func (b *backend) Scheme(ctx context.Context, s engine.Scheme, wait time.Duration) (have string, err error) {
	get := b.sql.GetScheme
	read := func() error { return b.db.QueryRowContext(ctx, get.SQL, get.Args(b.bytes16(s.ID))...).Scan(&have) }
	if err = read(); errors.Is(err, sql.ErrNoRows) {
		if err = b.putScheme(ctx, s, wait); err == nil {
			err = read()
		}
	}
	return have, b.missingTable(ctx, err)
}

// putScheme inserts in a transaction, for the limited wait that begin has for SQLite's writer.
func (b *backend) putScheme(ctx context.Context, s engine.Scheme, wait time.Duration) error {
	conn, err := b.db.Conn(ctx)
	if err != nil {
		return err
	}
	t, err := b.begin(ctx, conn, wait)
	if err != nil {
		_ = conn.Close()
		return err
	}
	defer t.Rollback(ctx) //nolint:errcheck // after Commit there is nothing to roll back
	put := b.sql.PutScheme
	_, err = t.tx.ExecContext(ctx, put.SQL, put.Args(b.bytes16(s.ID), s.Consumer, s.Scheme)...)
	if mysqlCode(err) == mysqlDuplicate {
		return nil
	}
	if err != nil {
		return err
	}
	return t.Commit(ctx, nil)
}

// Forget is engine.Forgetter's Forget.
func (b *backend) Forget(ctx context.Context, keys []inbox.StorageKey) error {
	if b.config.Dialect == PostgreSQL {
		_, err := b.db.ExecContext(ctx, b.sql.Forget.SQL, uuidArray(keys))
		return err
	}
	tx, err := b.db.BeginTx(ctx, b.options)
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // after Commit there is nothing to roll back
	for _, key := range keys {
		if _, err := tx.ExecContext(ctx, b.sql.Forget.SQL, b.bytes16(key)); err != nil {
			return err
		}
	}
	return tx.Commit()
}
