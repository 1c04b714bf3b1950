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
	"github.com/watermill-contrib/watermill-inbox/sqlinbox/internal/pgclaim"
)

// backend is engine.Backend on pgx.
type backend struct {
	pool    *pgxpool.Pool
	claimer pgclaim.Claimer
	queue   dialect.Queue
	options pgx.TxOptions
	met     func() // is told of every physical connection that was not used before
}

// Claim is engine.Backend's Claim. BEGIN and the INSERT go out together; for a taken key ROLLBACK and the read go out
// together. PostgreSQL's claim never waits, so there is no use for a limit of the wait.
func (b *backend) Claim(ctx context.Context, c *engine.Claim, _ time.Duration) (engine.Answer, error) {
	conn, err := b.acquire(ctx)
	if err != nil {
		return engine.Answer{}, err
	}
	tx, claimed, proposal, err := b.claimer.Begin(ctx, conn, b.options, c)
	if err == nil && claimed {
		return engine.Answer{Tx: newTransaction(conn, tx, b), Proposal: proposal}, nil
	}
	// Release puts a connection with an open transaction out of use; it is the way out for every failure.
	defer conn.Release()
	if err != nil {
		pgclaim.Rollback(ctx, conn.Conn(), tx)
		return engine.Answer{}, b.named(err)
	}
	row, err := b.claimer.Taken(ctx, conn.Conn().PgConn(), c)
	if err != nil {
		return engine.Answer{}, err
	}
	return engine.Answer{Row: row}, nil
}

// acquire takes a connection, and tells of one that was not used before: it may lead to another server after a fail-over.
func (b *backend) acquire(ctx context.Context) (*pgxpool.Conn, error) {
	conn, err := b.pool.Acquire(ctx)
	if err == nil && !pgclaim.Met(conn.Conn().PgConn(), b) {
		b.met()
	}
	return conn, err
}

// Probe is engine.Prober's Probe.
func (b *backend) Probe(ctx context.Context, c *engine.Claim) (*engine.Row, bool, error) {
	conn, err := b.acquire(ctx)
	if err != nil {
		return nil, false, err
	}
	defer conn.Release()
	return b.claimer.Probe(ctx, conn.Conn().PgConn(), c)
}

// Scheme is engine.Backend's Scheme. The insert commits by itself before the second read: the first writer wins.
func (b *backend) Scheme(ctx context.Context, s engine.Scheme, _ time.Duration) (have string, err error) {
	read := func() error { return b.pool.QueryRow(ctx, b.claimer.SQL.GetScheme.SQL, pgclaim.UUID(s.ID)).Scan(&have) }
	if err = read(); errors.Is(err, pgx.ErrNoRows) {
		if _, err = b.pool.Exec(ctx, b.claimer.SQL.PutScheme.SQL, pgclaim.UUID(s.ID), s.Consumer, s.Scheme); err == nil {
			err = read()
		}
	}
	return have, b.named(err)
}

// Forget is engine.Forgetter's Forget.
func (b *backend) Forget(ctx context.Context, keys []inbox.StorageKey) error {
	ids := make([]pgtype.UUID, len(keys))
	for i, key := range keys {
		ids[i] = pgclaim.UUID(key)
	}
	_, err := b.pool.Exec(ctx, b.claimer.SQL.Forget.SQL, ids)
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
