package pgxinbox

import (
	"context"
	"slices"

	"github.com/jackc/pgx/v5"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox/internal/engine"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox/internal/pgclaim"
)

var (
	_ inbox.QueueStore    = (*Store)(nil)
	_ engine.Reader       = (*backend)(nil)
	_ engine.LeaseBackend = (*backend)(nil)
	_ engine.LeaseTx      = (*transaction)(nil)
	_ engine.StoreTx      = (*transaction)(nil)
)

// Look is engine.Reader's Look.
func (b *backend) Look(ctx context.Context, c *engine.Claim) (*engine.Row, error) {
	conn, err := b.acquire(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Release()
	row, err := b.claimer.Look(ctx, conn.Conn().PgConn(), c)
	return row, b.named(err)
}

// BeginLeased is engine.LeaseBackend's BeginLeased: BEGIN, the fence and the memory row in one round trip.
func (b *backend) BeginLeased(ctx context.Context, row *engine.QueueRow, token engine.Token, end engine.End) (engine.LeaseTx, error) {
	conn, err := b.acquire(ctx)
	if err != nil {
		return nil, err
	}
	tx, held, err := b.claimer.BeginLeased(ctx, conn, b.options, b.queue, row, token, end)
	if err == nil && held {
		return newTransaction(conn, tx, b), nil
	}
	pgclaim.Rollback(ctx, conn.Conn(), tx)
	conn.Release()
	return nil, b.named(err)
}

// Delete is engine.LeaseTx's Delete, with COMMIT.
func (t *transaction) Delete(_ context.Context, row *engine.QueueRow) error {
	t.atCommit.add(t.backend.queue.Delete.SQL, row.Seq)
	return nil
}

// Promote is engine.LeaseTx's Promote, with COMMIT.
func (t *transaction) Promote(_ context.Context, row *engine.QueueRow) (bool, error) {
	if !t.KeepsOrder() {
		return false, nil
	}
	t.atCommit.add(t.backend.queue.LockLane.SQL, row.Lane)
	t.atCommit.add(t.backend.queue.Promote.SQL, pgclaim.UUID(row.ConsumerID), row.Lane)
	return true, nil
}

// KeepsOrder is engine.StoreTx's KeepsOrder.
func (t *transaction) KeepsOrder() bool { return t.backend.options.IsoLevel == pgx.ReadCommitted }

// Because is engine.LeaseTx's Because, with COMMIT.
func (t *transaction) Because(_ context.Context, row *engine.QueueRow, cause string) error {
	t.atCommit.add(t.backend.queue.Because.SQL, row.Seq, cause)
	return nil
}

// CompleteOperation is engine.LeaseTx's CompleteOperation, in a round trip of its own: it must find its row.
func (t *transaction) CompleteOperation(ctx context.Context, c *engine.OperationClaim, owner inbox.StorageKey, value, messages []byte) error {
	if err := t.committable(); err != nil {
		return err
	}
	tag, err := t.inner.Exec(ctx, t.backend.queue.CompleteOperation.SQL, pgclaim.UUID(c.Key), value, messages, pgclaim.UUID(owner))
	if err == nil && tag.RowsAffected() != 1 {
		err = inbox.ErrLeaseLost
	}
	return err
}

// FreeOperations is engine.LeaseTx's FreeOperations, with COMMIT.
func (t *transaction) FreeOperations(_ context.Context, owner inbox.StorageKey) error {
	t.atCommit.add(t.backend.queue.FreeOperations.SQL, pgclaim.UUID(owner))
	return nil
}

// ForgetSteps is engine.LeaseTx's ForgetSteps, with COMMIT.
func (t *transaction) ForgetSteps(_ context.Context, owner inbox.StorageKey) error {
	t.atCommit.add(t.backend.queue.ForgetSteps.SQL, pgclaim.UUID(owner))
	return nil
}

// Look is engine.Reader's Look, in the transaction.
func (t *transaction) Look(ctx context.Context, c *engine.Claim) (*engine.Row, error) {
	row, err := t.backend.claimer.Look(ctx, t.conn.Conn().PgConn(), c)
	return row, t.backend.named(err)
}

// StoreItems is engine.StoreTx's StoreItems.
func (t *transaction) StoreItems(ctx context.Context, items []*engine.Item) ([]bool, error) {
	var lanes []int64
	for _, item := range items {
		if item.Lane != 0 {
			lanes = append(lanes, item.Lane)
		}
	}
	slices.Sort(lanes)
	return pgclaim.StoreIn(ctx, t.inner, t.backend.queue, slices.Compact(lanes), items)
}
