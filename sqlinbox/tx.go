package sqlinbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"

	inbox "github.com/watermill-contrib/watermill-inbox"
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
	pg      *pgconn.PgConn // nil: not pgx, or hidden by a wrapper
	scope   engine.Scope
	release context.CancelFunc
	ended   bool
}

func (t *transaction) Scope() *engine.Scope { return &t.scope }

// Commit keeps the record and commits, unless the connection is no longer inside the transaction that was begun.
func (t *transaction) Commit(ctx context.Context, record *engine.Record) error {
	if t.outside() {
		return inbox.ErrTxManaged
	}
	stop := t.closeWith(ctx)
	err := t.record(ctx, record)
	if err == nil {
		err = t.tx.Commit()
	}
	if !stop() && err != nil {
		return fmt.Errorf("%w: %w", ctx.Err(), err)
	}
	switch {
	case err == nil:
		t.end()
		return nil
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
	outside := t.outside()
	stop := t.closeWith(ctx)
	defer stop()
	err := t.tx.Rollback()
	if t.backend.config.Dialect == SQLite && errors.Is(err, sql.ErrTxDone) {
		// database/sql takes a transaction for done after a COMMIT that failed; SQLite keeps it open (busy).
		_, _ = t.conn.ExecContext(ctx, "ROLLBACK")
	}
	if outside || errors.Is(err, sql.ErrTxDone) || sqliteCode(err) == sqliteError {
		return inbox.ErrTxManaged
	}
	return err
}

func (t *transaction) end() {
	t.ended = true
	t.release()
	_ = t.conn.Close()
}

// outside tells that the handler ended the transaction by SQL, as far as the driver shows it.
func (t *transaction) outside() bool {
	return t.pg != nil && !t.pg.IsClosed() && t.pg.TxStatus() == 'I'
}

// closeWith closes the connection's socket when ctx ends: database/sql has no context for COMMIT and ROLLBACK, and
// would wait for an answer for ever. The returned func stops that, and is false when it was too late.
func (t *transaction) closeWith(ctx context.Context) func() bool {
	if t.pg == nil {
		return func() bool { return true }
	}
	return context.AfterFunc(ctx, func() { _ = t.pg.Conn().Close() })
}

// pgConnOf gives the connection below pgx's stdlib, nil for other drivers.
func pgConnOf(conn *sql.Conn) (pg *pgconn.PgConn) {
	_ = conn.Raw(func(driverConn any) error {
		if c, ok := driverConn.(*stdlib.Conn); ok {
			pg = c.Conn().PgConn()
		}
		return nil
	})
	return pg
}
