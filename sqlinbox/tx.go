package sqlinbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox/internal/dialect"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox/internal/engine"
)

// TxFromContext gives the transaction of the message that is being handled. It belongs to the inbox: a handler that
// ends it, by Commit, Rollback (also in a defer) or SQL, gets inbox.ErrTxManaged instead of an ack. After the handler
// it is gone. Outside a handler behind the middleware the error is inbox.ErrNoTx.
func TxFromContext(ctx context.Context) (*sql.Tx, error) {
	return engine.TxFromContext[*sql.Tx](ctx)
}

// ConsumerHandler makes a handler that cannot forget the transaction: for router.AddConsumerHandler.
func ConsumerHandler(fn func(ctx context.Context, tx *sql.Tx, msg *message.Message) error) message.NoPublishHandlerFunc {
	return func(msg *message.Message) error {
		ctx := msg.Context()
		tx, err := TxFromContext(ctx)
		if err != nil {
			return err
		}
		return fn(ctx, tx, msg)
	}
}

// transaction is engine.Tx over database/sql.
type transaction struct {
	backend *backend
	conn    *sql.Conn
	tx      *sql.Tx
	claim   *engine.Claim  // nil: not of a message
	pg      *pgconn.PgConn // nil: not pgx, or hidden by a wrapper

	operation *engine.OperationClaim // of an operation without a message
	leased    *engine.QueueRow       // of a message from the queue
	scope     engine.Scope
	release   context.CancelFunc
	ended     bool
	left      <-chan error // of a statement that was left to itself, see within
}

func (t *transaction) Scope() *engine.Scope { return &t.scope }

// Commit keeps the record and commits, unless the connection is no longer inside the transaction that was begun.
func (t *transaction) Commit(ctx context.Context, record *engine.Record) error {
	if t.outside() {
		return inbox.ErrTxManaged
	}
	err := t.within(ctx, func() error {
		if err := t.stillClaimed(ctx); err != nil {
			return err
		}
		if err := t.record(ctx, record); err != nil {
			return err
		}
		return t.tx.Commit()
	})
	switch {
	case err == nil:
		t.end()
		return nil
	case errors.Is(err, inbox.ErrTxManaged):
		return err
	case errors.Is(err, sql.ErrTxDone):
		return inbox.ErrTxManaged
	case errors.Is(err, pgx.ErrTxCommitRollback):
		return fmt.Errorf("%w (%w)", inbox.ErrTxAborted, err)
	case sqliteCode(err) == sqliteError:
		// The one error of that code that a COMMIT gives: no transaction is active.
		return fmt.Errorf("%w (%w)", inbox.ErrTxManaged, err)
	}
	return err
}

// stillClaimed asks MySQL and MariaDB whether the transaction that is about to be committed is the one of the claim. There
// the server rolls back all of it at a deadlock; a handler that swallows that error goes on outside any transaction.
// The same read finds a handler that executed COMMIT or ROLLBACK as SQL, which no driver for these databases shows; on
// PostgreSQL it is for a driver that is not pgx's, or a wrapper that hides it.
func (t *transaction) stillClaimed(ctx context.Context) error {
	var check dialect.Statement
	var what any
	switch {
	case t.claim != nil:
		check, what = t.backend.sql.Check, t.backend.bytes16(t.claim.Key)
	case t.operation != nil:
		check, what = t.backend.sql.CheckOperation, t.backend.bytes16(t.operation.Key)
	case t.leased != nil:
		check, what = t.backend.queue.CheckLease, t.leased.Seq
	}
	if check.SQL == "" || t.pg != nil {
		return nil
	}
	var open, claimed bool
	err := t.tx.QueryRowContext(ctx, check.SQL, check.Args(what)...).Scan(&open, &claimed)
	switch {
	case errors.Is(err, sql.ErrTxDone):
		return inbox.ErrTxManaged
	case sqlState(err) == "25P02":
		return fmt.Errorf("%w (%w)", inbox.ErrTxAborted, err)
	case err != nil || open && claimed:
		return err
	case claimed:
		return inbox.ErrTxManaged
	}
	return fmt.Errorf("%w; or %w", inbox.ErrTxManaged, inbox.ErrTxAborted)
}

func (t *transaction) record(ctx context.Context, record *engine.Record) error {
	if record == nil {
		return nil
	}
	if t.pg != nil && t.pg.TxStatus() == 'E' {
		return pgx.ErrTxCommitRollback
	}
	put := t.backend.sql.Record
	_, err := t.tx.ExecContext(ctx, put.SQL, put.Args(t.backend.bytes16(record.Key), record.Handler, record.Messages)...)
	if t.backend.Fault(err) == engine.FaultSchema {
		err = fmt.Errorf("%w: %w", errNoSuchTable, err)
	}
	return err
}

// Rollback rolls back and gives the connection back, whatever state the transaction is in.
func (t *transaction) Rollback(ctx context.Context) error {
	if t.ended {
		return nil
	}
	defer t.end()
	if t.left != nil {
		return nil // the connection is not usable any more
	}
	outside := t.outside()
	err := t.within(ctx, t.tx.Rollback)
	if t.backend.config.Dialect == SQLite && errors.Is(err, sql.ErrTxDone) {
		// database/sql takes a transaction for done after a COMMIT that failed; SQLite keeps it open (busy).
		_, _ = t.conn.ExecContext(ctx, "ROLLBACK")
	}
	if outside || errors.Is(err, sql.ErrTxDone) || sqliteCode(err) == sqliteError {
		return inbox.ErrTxManaged
	}
	return err
}

// end gives the connection back; one that was left to itself, when it has come to its end.
func (t *transaction) end() {
	t.ended = true
	if left := t.left; left != nil {
		go func() {
			<-left //nolint:errcheck // nobody waits for its answer any more
			t.release()
			_ = t.conn.Close()
		}()
		return
	}
	t.release()
	_ = t.conn.Close()
}

// outside tells that the handler ended the transaction by SQL, as far as the driver shows it.
func (t *transaction) outside() bool {
	return t.pg != nil && !t.pg.IsClosed() && t.pg.TxStatus() == 'I'
}

// within runs a statement that ends the transaction, for which database/sql knows no context and would wait for an
// answer for ever. When ctx ends, pgx's socket is closed. Other drivers do not give theirs away: their statement is left
// to itself, until the server, the system or a read timeout of the DSN ends it, and with it its connection. An embedded
// database always answers.
func (t *transaction) within(ctx context.Context, end func() error) error {
	switch {
	case t.pg != nil:
		stop := context.AfterFunc(ctx, func() { _ = t.pg.Conn().Close() })
		err := end()
		if !stop() && err != nil {
			return fmt.Errorf("%w: %w", ctx.Err(), err)
		}
		return err
	case t.backend.config.Dialect == SQLite:
		return end()
	}
	done := make(chan error, 1)
	go func() {
		done <- end()
		close(done)
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		t.left = done
		return ctx.Err()
	}
}

// pgConnOf gives the connection below pgx's stdlib, nil for other drivers.
func pgConnOf(conn *sql.Conn) (pg *pgconn.PgConn) {
	_ = conn.Raw(func(driverConn any) error {
		if c, ok := driverConn.(interface{ Conn() *pgx.Conn }); ok { // pgx's stdlib, or pgxinbox.OpenDB
			pg = c.Conn().PgConn()
		}
		return nil
	})
	return pg
}
