package pgxinbox

import (
	"context"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox/internal/engine"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox/internal/pgclaim"
)

// TxFromContext gives the transaction of the message that is being handled: pgx's own, with savepoints (Begin), large
// objects and batches. It belongs to the inbox: Commit and Rollback (also in a defer) answer inbox.ErrTxManaged and
// doom it, and COMMIT or ROLLBACK as SQL is found out before the ack. After the handler it is gone. Outside a handler
// behind the middleware the error is inbox.ErrNoTx.
func TxFromContext(ctx context.Context) (pgx.Tx, error) {
	return engine.TxFromContext[pgx.Tx](ctx)
}

// ConsumerHandler makes a handler that cannot forget the transaction: for router.AddConsumerHandler.
func ConsumerHandler(fn func(ctx context.Context, tx pgx.Tx, msg *message.Message) error) message.NoPublishHandlerFunc {
	return func(msg *message.Message) error {
		ctx := msg.Context()
		tx, err := TxFromContext(ctx)
		if err != nil {
			return err
		}
		return fn(ctx, tx, msg)
	}
}

// handlerTx is what the handler gets: pgx's transaction, without the right to end it.
type handlerTx struct {
	pgx.Tx
	t *transaction
}

// Commit dooms the transaction; it is the inbox that commits.
func (tx handlerTx) Commit(context.Context) error { return tx.refuse() }

// Rollback dooms the transaction; it is the inbox that rolls back, when the handler returns an error.
func (tx handlerTx) Rollback(context.Context) error { return tx.refuse() }

func (tx handlerTx) refuse() error {
	if tx.t.scope.Over() { // an idle `defer tx.Rollback` in a goroutine that outlived the handler
		return pgx.ErrTxClosed
	}
	tx.t.scope.Doom(inbox.ErrTxManaged)
	return inbox.ErrTxManaged
}

// transaction is engine.Tx on pgx.
type transaction struct {
	conn     *pgxpool.Conn
	inner    pgx.Tx
	backend  *backend
	scope    engine.Scope
	atCommit atCommit
	released bool
}

func newTransaction(conn *pgxpool.Conn, inner pgx.Tx, backend *backend) *transaction {
	t := &transaction{conn: conn, inner: inner, backend: backend}
	t.scope.Handle = handlerTx{inner, t}
	return t
}

func (t *transaction) Scope() *engine.Scope { return &t.scope }

// Commit commits, unless the connection is no longer inside the transaction that was begun. What is kept for COMMIT, the
// record and the handler's ExecAtCommit, travels with it in one round trip.
func (t *transaction) Commit(ctx context.Context, record *engine.Record) error {
	if err := t.committable(); err != nil {
		return err
	}
	if record != nil {
		t.atCommit.add(t.backend.claimer.SQL.Record.SQL, pgclaim.UUID(record.Key), record.Handler, record.Messages)
	}
	err := t.commit(ctx, record != nil)
	if errors.Is(err, pgx.ErrTxCommitRollback) {
		return fmt.Errorf("%w (%w)", inbox.ErrTxAborted, err)
	}
	if err == nil {
		t.release()
	}
	return err
}

// committable tells what the handler did to the transaction that keeps it from being committed.
func (t *transaction) committable() error {
	pg := t.conn.Conn().PgConn()
	switch {
	case t.outside():
		return inbox.ErrTxManaged
	case pg.IsBusy():
		return inbox.ErrTxBusy
	case pg.TxStatus() == 'E':
		return fmt.Errorf("%w (%w)", inbox.ErrTxAborted, pgx.ErrTxCommitRollback)
	}
	return nil
}

func (t *transaction) commit(ctx context.Context, recorded bool) error {
	batch := t.atCommit.take()
	if batch == nil {
		return t.inner.Commit(ctx)
	}
	// After a statement that fails the server skips the rest of the batch, COMMIT included: the caller rolls back.
	batch.Queue("commit")
	results := t.conn.Conn().SendBatch(ctx, batch)
	var tag pgconn.CommandTag
	var err error
	for i := range batch.QueuedQueries {
		if tag, err = results.Exec(); err != nil {
			if recorded && i == len(batch.QueuedQueries)-2 { // the record's INSERT: the inbox's own table
				err = t.backend.named(err)
			}
			break
		}
	}
	if closeErr := results.Close(); err == nil {
		err = closeErr
	}
	if err == nil && tag.String() == "ROLLBACK" {
		return pgx.ErrTxCommitRollback
	}
	return err
}

// Rollback rolls back and gives the connection back, whatever state the transaction is in.
func (t *transaction) Rollback(ctx context.Context) error {
	if t.released {
		return nil
	}
	defer t.release()
	if t.outside() {
		return inbox.ErrTxManaged
	}
	busy := t.conn.Conn().PgConn().IsBusy()
	err := t.inner.Rollback(ctx)
	if busy || errors.Is(err, pgx.ErrTxClosed) {
		// The handler left rows open: pgx has closed the connection, which is a rollback too. Or Commit has failed before.
		return nil
	}
	return err
}

func (t *transaction) release() {
	t.released = true
	t.conn.Release()
}

// outside tells that the handler ended the transaction by SQL.
func (t *transaction) outside() bool {
	pg := t.conn.Conn().PgConn()
	return !pg.IsClosed() && pg.TxStatus() == 'I'
}
