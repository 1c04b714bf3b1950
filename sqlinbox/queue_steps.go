package sqlinbox

import (
	"context"
	"database/sql"
	"errors"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox/internal/engine"
)

// Own is engine.LeaseSQL's Own.
func (b *backend) Own(ctx context.Context, row *engine.QueueRow, token engine.Token, c *engine.OperationClaim) (o engine.Ownership, err error) {
	err = b.inTx(ctx, func(t *transaction) error {
		// The row's lock, until the operation is claimed: a message that is done must not own anything.
		if o.Held, err = t.exec(ctx, b.queue.Hold, row.Seq, b.bytes16(token), row.LeaseTime.Milliseconds()); err != nil || !o.Held {
			return err
		}
		// Read first: on MySQL an INSERT that meets a row locks it, and two who then take it over would deadlock.
		var known bool
		if known, o.Owned, o.Done, err = b.ownedBy(ctx, t, c, row.Key); err != nil || known {
			return err
		}
		own := b.queue.OwnOperation
		o.Owned, err = t.exec(ctx, own, b.bytes16(c.Key), b.bytes16(c.Fingerprint), c.Scope, c.ID, c.LockID, b.bytes16(row.Key))
		if mysqlCode(err) == mysqlDuplicate || claimBusy(err) != err { //nolint:errorlint // the same error comes back unless it means busy
			return nil // somebody was faster
		}
		return err
	})
	return o, b.missingTable(ctx, err)
}

// ownedBy reads whose an operation is, if anybody's, and takes it over from a message that is not queued.
func (b *backend) ownedBy(ctx context.Context, t *transaction, c *engine.OperationClaim, owner inbox.StorageKey) (known, owned bool, done *engine.OperationRow, err error) {
	read := b.queue.OwnerOf
	var present, fingerprint []byte
	var queued bool
	var row engine.OperationRow
	err = t.tx.QueryRowContext(ctx, read.SQL, unprepared(t.conn, read.Args(b.bytes16(c.Key))...)...).
		Scan(&present, &queued, &fingerprint, &row.Scope, &row.ID, &row.Result, &row.Messages)
	if errors.Is(err, sql.ErrNoRows) {
		return false, false, nil, nil
	}
	if err != nil {
		return true, false, nil, err
	}
	if row.Fingerprint, err = parse16(fingerprint); err != nil {
		return true, false, nil, err
	}
	if present == nil {
		return true, false, &row, nil
	}
	has, err := parse16(present)
	if err != nil {
		return true, false, nil, err
	}
	if has == owner {
		if row.Fingerprint != c.Fingerprint || row.Scope != c.Scope || row.ID != c.ID {
			return true, false, &row, nil // told apart by the caller
		}
		return true, true, nil, nil
	}
	if queued {
		return true, false, nil, nil
	}
	owned, err = t.exec(ctx, b.queue.TakeOverOperation, b.bytes16(c.Key), b.bytes16(c.Fingerprint), b.bytes16(owner))
	return true, owned, nil, err
}

// FindStep is engine.LeaseSQL's FindStep.
func (b *backend) FindStep(ctx context.Context, owner inbox.StorageKey, name string) (result []byte, found bool, err error) {
	find := b.queue.FindStep
	err = b.db.QueryRowContext(ctx, find.SQL, find.Args(b.bytes16(owner), name)...).Scan(&result)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, false, nil
	}
	return result, err == nil, b.missingTable(ctx, err)
}

// PutStep is engine.LeaseSQL's PutStep: the row's lock keeps the lease while the result is kept.
func (b *backend) PutStep(ctx context.Context, row *engine.QueueRow, token engine.Token, owner inbox.StorageKey, name string, result []byte) (kept []byte, held bool, err error) {
	if result == nil {
		result = []byte{}
	}
	err = b.inTx(ctx, func(t *transaction) error {
		if held, err = t.exec(ctx, b.queue.Hold, row.Seq, b.bytes16(token), row.LeaseTime.Milliseconds()); err != nil || !held {
			return err
		}
		if _, err := t.exec(ctx, b.queue.PutStep, b.bytes16(owner), name, result); err != nil {
			return err
		}
		find := b.queue.FindStep
		return t.tx.QueryRowContext(ctx, find.SQL, find.Args(b.bytes16(owner), name)...).Scan(&kept)
	})
	return kept, held, b.missingTable(ctx, err)
}

// Hold is engine.LeaseSQL's Hold.
func (b *backend) Hold(ctx context.Context, row *engine.QueueRow, token engine.Token) (bool, error) {
	return b.one(ctx, b.queue.Hold, row, token, row.LeaseTime.Milliseconds())
}
