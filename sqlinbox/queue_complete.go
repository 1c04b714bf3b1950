package sqlinbox

import (
	"context"
	"database/sql"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox/internal/engine"
)

// BeginLeased is engine.LeaseBackend's BeginLeased: the fence first, then the handler's work.
func (b *backend) BeginLeased(ctx context.Context, row *engine.QueueRow, token engine.Token, end engine.End) (engine.LeaseTx, error) {
	conn, err := b.db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	t, err := b.begin(ctx, conn, engine.DefaultInFlightWait)
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	err = b.limitIdleness(ctx, t.tx)
	held := false
	if err == nil {
		held, err = t.exec(ctx, b.queue.Fence(end == engine.EndPublish, end == engine.EndBury), row.Seq, b.bytes16(token))
	}
	if err == nil && held && end != engine.EndBury {
		_, err = t.exec(ctx, b.queue.Processed, b.bytes16(row.Key))
		t.leased = row
	}
	if err != nil || !held {
		_ = t.Rollback(ctx)
		return nil, b.missingTable(ctx, err)
	}
	return t, nil
}

// Delete is engine.LeaseTx's Delete.
func (t *transaction) Delete(ctx context.Context, row *engine.QueueRow) error {
	_, err := t.exec(ctx, t.backend.queue.Delete, row.Seq)
	return managed(err)
}

// Promote is engine.LeaseTx's Promote.
func (t *transaction) Promote(ctx context.Context, row *engine.QueueRow) (bool, error) {
	if !t.KeepsOrder() {
		return false, nil
	}
	return true, managed(t.promote(ctx, row.ConsumerID, row.Lane))
}

// KeepsOrder is engine.StoreTx's KeepsOrder.
func (t *transaction) KeepsOrder() bool {
	b := t.backend
	level := b.options.Isolation
	return b.config.Dialect == SQLite || level == sql.LevelReadCommitted || level == sql.LevelDefault && b.config.readCommitted
}

// Because is engine.LeaseTx's Because.
func (t *transaction) Because(ctx context.Context, row *engine.QueueRow, cause string) error {
	_, err := t.exec(ctx, t.backend.queue.Because, row.Seq, cause)
	return managed(err)
}

// CompleteOperation is engine.LeaseTx's CompleteOperation.
func (t *transaction) CompleteOperation(ctx context.Context, c *engine.OperationClaim, owner inbox.StorageKey, value, messages []byte) error {
	done, err := t.exec(ctx, t.backend.queue.CompleteOperation, t.backend.bytes16(c.Key), value, messages, t.backend.bytes16(owner))
	if err == nil && !done {
		err = inbox.ErrLeaseLost
	}
	return managed(err)
}

// FreeOperations is engine.LeaseTx's FreeOperations.
func (t *transaction) FreeOperations(ctx context.Context, owner inbox.StorageKey) error {
	_, err := t.exec(ctx, t.backend.queue.FreeOperations, t.backend.bytes16(owner))
	return managed(err)
}

// ForgetSteps is engine.LeaseTx's ForgetSteps.
func (t *transaction) ForgetSteps(ctx context.Context, owner inbox.StorageKey) error {
	_, err := t.exec(ctx, t.backend.queue.ForgetSteps, t.backend.bytes16(owner))
	return managed(err)
}

// Look is engine.Reader's Look, in the transaction.
func (t *transaction) Look(ctx context.Context, c *engine.Claim) (*engine.Row, error) {
	return t.backend.lookup(ctx, t, c)
}
