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
	"github.com/watermill-contrib/watermill-inbox/sqlinbox/internal/pgclaim"
)

// backend is engine.Backend over database/sql.
type backend struct {
	db           *sql.DB
	config       Config
	sql          dialect.Statements
	queue        dialect.Queue
	schema       dialect.Schema
	options      *sql.TxOptions
	queueOptions *sql.TxOptions // of the queue's own statements: they must see what was committed before
	idleTimeout  string         // a statement, or empty
	claimer      *pgclaim.Claimer
	connections  connections
}

func newBackend(db *sql.DB, config Config) *backend {
	d, _ := config.dialect() // Validate has accepted it
	names := dialect.NewNames(config.Schema, config.prefix(), d.Quote)
	b := &backend{
		db: db, config: config,
		sql:          d.Statements(names),
		queue:        d.Queue(names),
		schema:       d.NewSchema(config.Schema, config.prefix(), 0),
		options:      &sql.TxOptions{Isolation: config.Isolation},
		queueOptions: &sql.TxOptions{Isolation: sql.LevelReadCommitted},
	}
	switch config.Dialect {
	case PostgreSQL:
		b.idleTimeout = dialect.IdleTimeout(config.IdleTimeout)
		b.claimer = &pgclaim.Claimer{SQL: b.sql, IdleTimeout: b.idleTimeout}
		fallthrough
	case MySQL:
		if config.Isolation == sql.LevelDefault && !config.readCommitted {
			b.options.Isolation = sql.LevelReadCommitted
		}
	case SQLite:
		b.options.Isolation = sql.LevelDefault
		b.queueOptions.Isolation = sql.LevelDefault
	}
	return b
}

// Claim is engine.Backend's Claim: begin, claim, and for a taken key a read after the rollback on the same connection.
func (b *backend) Claim(ctx context.Context, c *engine.Claim, wait time.Duration) (engine.Answer, error) {
	conn, err := b.db.Conn(ctx)
	if err != nil {
		return engine.Answer{}, err
	}
	request := &pgclaim.Request{Claimer: b.claimer, Claim: c} // for PostgreSQL through pgxinbox.OpenDB
	t, err := b.begin(pgclaim.WithRequest(ctx, request), conn, wait)
	if err != nil {
		_ = conn.Close()
		return engine.Answer{}, b.missingTable(ctx, err)
	}
	claimed, row := request.Claimed, request.Row
	if !request.Answered {
		claimed, err = b.insert(ctx, t.tx, c)
	}
	switch {
	case err == nil && claimed:
		t.claim = c
		if request.Conn != nil { // a wrapper may hide it
			t.pg = request.Conn
		}
		return engine.Answer{Tx: t, Proposal: request.Proposal}, nil
	case err == nil && row == nil:
		row, err = b.readTaken(ctx, t, c)
	default:
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
	return b.beginAt(ctx, conn, wait, b.options)
}

func (b *backend) beginAt(ctx context.Context, conn *sql.Conn, wait time.Duration, options *sql.TxOptions) (*transaction, error) {
	beginCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, cancel)
	ownLimit := func() bool { return false }
	if b.config.Dialect == SQLite {
		timer := time.AfterFunc(max(wait, shortestWriterWait), cancel)
		ownLimit = func() bool { return !timer.Stop() }
	}
	tx, err := conn.BeginTx(beginCtx, options)
	limited, ended := ownLimit(), !stop()
	if err == nil && !limited && !ended {
		// From here on nothing calls cancel but the end of the transaction.
		b.connections.use(conn)
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
	if err := b.limitIdleness(ctx, tx); err != nil {
		return false, err
	}
	return b.insertRow(ctx, tx, b.sql.LockFirst, b.sql.Claim, c.LockID,
		b.bytes16(c.Key), b.bytes16(c.Fingerprint), b.time(c.MessageTime),
		c.Consumer, c.Source, c.MessageID, c.Topic, c.Scope, b.bytes16(c.HorizonID))
}

// limitIdleness sets Config.IdleTimeout for the transaction.
func (b *backend) limitIdleness(ctx context.Context, tx *sql.Tx) error {
	if b.idleTimeout == "" {
		return nil
	}
	_, err := tx.ExecContext(ctx, b.idleTimeout)
	return err
}

// insertRow inserts a row unless its key is taken, and never waits for one who holds the key.
func (b *backend) insertRow(ctx context.Context, tx *sql.Tx, lockFirst, claim dialect.Statement, lockID int64, args ...any) (bool, error) {
	if b.config.Dialect == PostgreSQL {
		args = append(args, lockID)
	}
	if lockFirst.SQL != "" {
		if err := tx.QueryRowContext(ctx, lockFirst.SQL, lockFirst.Args(args...)...).Scan(new(int)); err != nil && !errors.Is(err, sql.ErrNoRows) {
			return false, claimBusy(err)
		}
	}
	result, err := tx.ExecContext(ctx, claim.SQL, claim.Args(args...)...)
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
	args := []any{b.bytes16(c.Key), b.time(c.MessageTime), b.bytes16(c.HorizonID)}
	if b.sql.Find.SQL != "" {
		row, err := b.scanRow(t.conn.QueryRowContext(ctx, b.sql.Find.SQL, unprepared(t.conn, args[0])...))
		if !errors.Is(err, sql.ErrNoRows) {
			return row, err
		}
	}
	return b.scanRow(t.conn.QueryRowContext(ctx, b.sql.Lookup.SQL, unprepared(t.conn, b.sql.Lookup.Args(args...)...)...))
}

func (b *backend) scanRow(found *sql.Row) (*engine.Row, error) {
	var row engine.Row
	var fingerprint []byte
	var consumer, source, id, handler sql.NullString
	err := found.Scan(&row.Found, &row.Processed, &row.Late, &fingerprint, &consumer, &source, &id, &handler, &row.Recorded)
	if err != nil {
		return nil, err
	}
	row.Consumer, row.Source, row.MessageID, row.RecordedBy = consumer.String, source.String, id.String, handler.String
	if row.Found {
		if row.Fingerprint, err = parse16(fingerprint); err != nil {
			return nil, fmt.Errorf("fingerprint: %w", err)
		}
	}
	return &row, nil
}

// Probe is engine.Prober's Probe.
func (b *backend) Probe(ctx context.Context, c *engine.Claim) (row *engine.Row, free bool, err error) {
	if b.sql.Probe.SQL == "" {
		return nil, true, nil
	}
	conn, err := b.db.Conn(ctx)
	if err != nil {
		return nil, false, err
	}
	defer conn.Close() //nolint:errcheck // the connection only goes back
	b.connections.use(conn)
	if pg := pgConnOf(conn); pg != nil {
		return b.claimer.Probe(ctx, pg, c)
	}
	probe := b.sql.Probe
	err = conn.QueryRowContext(ctx, probe.SQL, b.bytes16(c.Key), c.LockID).Scan(&free)
	return nil, free, err
}

func (b *backend) probe(ctx context.Context, probe dialect.Statement, key any, lockID int64) (free bool, err error) {
	if probe.SQL == "" {
		return true, nil
	}
	conn, err := b.db.Conn(ctx)
	if err != nil {
		return false, err
	}
	defer conn.Close() //nolint:errcheck // the connection only goes back
	err = conn.QueryRowContext(ctx, probe.SQL, unprepared(conn, key, lockID)...).Scan(&free)
	return free, err
}

// unprepared gives arguments with which pgx does not prepare their statement, see dialect.PostgreSQL.
func unprepared(conn *sql.Conn, args ...any) []any {
	if pgConnOf(conn) == nil {
		return args
	}
	return append([]any{pgx.QueryExecModeExec}, args...)
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
