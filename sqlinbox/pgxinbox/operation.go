package pgxinbox

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox/internal/engine"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox/internal/pgclaim"
)

var (
	_ inbox.OperationStore = (*Store)(nil)
	_ engine.Operator      = (*backend)(nil)
	_ engine.OperationTx   = (*transaction)(nil)
)

// Operate commits the work of a business operation at most once; see [inbox.OperationStore]. Package businesskey calls it.
func (s *Store) Operate(ctx context.Context, op inbox.Operation, fn inbox.OperationFunc) (inbox.OperationResult, error) {
	return s.engine.Operate(ctx, op, fn)
}

// ClaimOperation is engine.Operator's ClaimOperation, in the round trips of Claim.
func (b *backend) ClaimOperation(ctx context.Context, c *engine.OperationClaim, _ time.Duration) (engine.Tx, *engine.OperationRow, error) {
	conn, err := b.acquire(ctx)
	if err != nil {
		return nil, nil, err
	}
	tx, claimed, err := b.claimer.BeginOperation(ctx, conn, b.options, c)
	if err == nil && claimed {
		return newTransaction(conn, tx, b), nil, nil
	}
	defer conn.Release()
	if err != nil {
		pgclaim.Rollback(ctx, conn.Conn(), tx)
		return nil, nil, b.named(err)
	}
	row, err := b.claimer.TakenOperation(ctx, conn.Conn().PgConn(), c)
	return nil, row, err
}

// ProbeOperation is engine.Operator's ProbeOperation.
func (b *backend) ProbeOperation(ctx context.Context, c *engine.OperationClaim) (free bool, err error) {
	err = b.pool.QueryRow(ctx, b.claimer.SQL.ProbeOperation.SQL, pgx.QueryExecModeExec, pgclaim.UUID(c.Key), c.LockID).Scan(&free)
	return free, err
}

// Claim is engine.OperationTx's Claim.
func (t *transaction) Claim(ctx context.Context, c *engine.OperationClaim) (bool, error) {
	tag, err := t.inner.Exec(ctx, t.backend.claimer.SQL.ClaimOperation.SQL, pgclaim.OperationArgs(c)...)
	return tag.RowsAffected() == 1, t.backend.named(err)
}

// Read is engine.OperationTx's Read.
func (t *transaction) Read(ctx context.Context, c *engine.OperationClaim) (*engine.OperationRow, error) {
	return t.backend.claimer.ReadOperation(ctx, t.conn.Conn().PgConn(), c)
}

// Keep is engine.OperationTx's Keep: the result travels with COMMIT.
func (t *transaction) Keep(_ context.Context, c *engine.OperationClaim, result, messages []byte) error {
	t.atCommit.add(t.backend.claimer.SQL.KeepResult.SQL, pgclaim.UUID(c.Key), result, messages)
	return nil
}

// Drop is engine.OperationTx's Drop, in a round trip of its own.
func (t *transaction) Drop(ctx context.Context, c *engine.OperationClaim) error {
	if err := t.committable(); err != nil {
		return err
	}
	_, err := t.inner.Exec(ctx, t.backend.claimer.SQL.DropOperation.SQL, pgclaim.UUID(c.Key), pgclaim.UUID(c.Fingerprint))
	return err
}
