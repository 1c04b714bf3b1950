package sqlinbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox/internal/engine"
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

// ClaimOperation is engine.Operator's ClaimOperation.
func (b *backend) ClaimOperation(ctx context.Context, c *engine.OperationClaim, wait time.Duration) (engine.Tx, *engine.OperationRow, error) {
	conn, err := b.db.Conn(ctx)
	if err != nil {
		return nil, nil, err
	}
	t, err := b.begin(ctx, conn, wait)
	if err != nil {
		_ = conn.Close()
		return nil, nil, b.missingTable(ctx, err)
	}
	err = b.limitIdleness(ctx, t.tx)
	claimed := false
	if err == nil {
		claimed, err = t.Claim(ctx, c)
	}
	if err == nil && claimed {
		t.operation = c
		return t, nil, nil
	}
	var row *engine.OperationRow
	if rollbackErr := t.within(ctx, t.tx.Rollback); err == nil {
		err = rollbackErr
	}
	if err == nil {
		row, err = b.findOperation(ctx, t.conn, t.conn, c)
	}
	t.end() // before another connection is asked for: the pool may have no other
	return nil, row, b.missingTable(ctx, err)
}

// ProbeOperation is engine.Operator's ProbeOperation.
func (b *backend) ProbeOperation(ctx context.Context, c *engine.OperationClaim) (free bool, err error) {
	return b.probe(ctx, b.sql.ProbeOperation, b.bytes16(c.Key), c.LockID)
}

// findOperation reads what stands under a key: on the connection, or in the transaction on it.
func (b *backend) findOperation(ctx context.Context, on queryer, conn *sql.Conn, c *engine.OperationClaim) (*engine.OperationRow, error) {
	find := b.sql.FindOperation
	var fingerprint []byte
	var row engine.OperationRow
	err := on.QueryRowContext(ctx, find.SQL, unprepared(conn, find.Args(b.bytes16(c.Key))...)...).
		Scan(&fingerprint, &row.Scope, &row.ID, &row.Result, &row.Messages)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil //nolint:nilnil // nothing is there
	}
	if err != nil {
		return nil, err
	}
	if row.Fingerprint, err = parse16(fingerprint); err != nil {
		return nil, fmt.Errorf("fingerprint: %w", err)
	}
	return &row, nil
}

// Claim is engine.OperationTx's Claim.
func (t *transaction) Claim(ctx context.Context, c *engine.OperationClaim) (bool, error) {
	b := t.backend
	claimed, err := b.insertRow(ctx, t.tx, b.sql.LockOperationFirst, b.sql.ClaimOperation, c.LockID,
		b.bytes16(c.Key), b.bytes16(c.Fingerprint), c.Scope, c.ID)
	if errors.Is(err, errWriterBusy) {
		return false, nil
	}
	return claimed, managed(b.missingTableOn(ctx, t.tx, err))
}

// Read is engine.OperationTx's Read.
func (t *transaction) Read(ctx context.Context, c *engine.OperationClaim) (*engine.OperationRow, error) {
	row, err := t.backend.findOperation(ctx, t.tx, t.conn, c)
	return row, managed(err)
}

// Keep is engine.OperationTx's Keep.
func (t *transaction) Keep(ctx context.Context, c *engine.OperationClaim, result, messages []byte) error {
	keep := t.backend.sql.KeepResult
	_, err := t.tx.ExecContext(ctx, keep.SQL, keep.Args(t.backend.bytes16(c.Key), result, messages)...)
	return managed(err)
}

// Drop is engine.OperationTx's Drop.
func (t *transaction) Drop(ctx context.Context, c *engine.OperationClaim) error {
	switch {
	case t.outside():
		return inbox.ErrTxManaged
	case t.pg != nil && t.pg.TxStatus() == 'E':
		return fmt.Errorf("%w (%w)", inbox.ErrTxAborted, pgx.ErrTxCommitRollback)
	}
	drop := t.backend.sql.DropOperation
	_, err := t.tx.ExecContext(ctx, drop.SQL, drop.Args(t.backend.bytes16(c.Key), t.backend.bytes16(c.Fingerprint))...)
	return managed(err)
}

// managed names the handler's mistake when the transaction is over already.
func managed(err error) error {
	if errors.Is(err, sql.ErrTxDone) {
		return inbox.ErrTxManaged
	}
	return err
}
