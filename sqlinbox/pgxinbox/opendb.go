package pgxinbox

import (
	"context"
	"database/sql"
	"database/sql/driver"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox/internal/pgclaim"
)

// OpenDB opens a *sql.DB with pgx's driver, as stdlib.OpenDB does, on which a sqlinbox.Store sends the claim of a message
// together with BEGIN: a message costs the round trips of a bare transaction. For every other use, and for the handler,
// it is pgx's own driver.
//
// Only the type of the driver's connection differs: code that reaches for it with (*sql.Conn).Raw must ask for
// interface{ Conn() *pgx.Conn } instead of *stdlib.Conn.
func OpenDB(config pgx.ConnConfig, options ...stdlib.OptionOpenDB) *sql.DB {
	return sql.OpenDB(Connector(stdlib.GetConnector(config, options...)))
}

// Connector does the same for a connector of package stdlib, to be opened by sql.OpenDB or by a wrapper of the driver
// (otelsql.OpenDB). A connector of anything else is left as it is.
func Connector(connector driver.Connector) driver.Connector { return claimConnector{connector} }

type claimConnector struct{ driver.Connector }

func (c claimConnector) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := c.Connector.Connect(ctx)
	if std, ok := conn.(*stdConn); ok && err == nil {
		return claimConn{std}, nil
	}
	return conn, err
}

// stdConn has another name than its type, so that the embedded field does not hide the method Conn.
type stdConn = stdlib.Conn

// claimConn is pgx's connection for database/sql with another BeginTx.
type claimConn struct{ *stdConn }

// BeginTx sends the claim that is asked for in ctx, if any, together with BEGIN. For a key that is taken the transaction
// is over when BeginTx returns, with a driver.Tx that has nothing left to end: an error would look like a failure to
// those who trace the driver.
func (c claimConn) BeginTx(ctx context.Context, options driver.TxOptions) (driver.Tx, error) {
	request := pgclaim.RequestFrom(ctx)
	if request == nil || request.Claimer == nil || c.Conn().IsClosed() {
		return c.stdConn.BeginTx(ctx, options)
	}
	conn := c.Conn()
	tx, claimed, proposal, err := request.Claimer.Begin(ctx, conn, pgx.TxOptions{IsoLevel: isoLevel(sql.IsolationLevel(options.Isolation))}, request.Claim)
	if err != nil {
		pgclaim.Rollback(ctx, conn, tx)
		return nil, err
	}
	if !claimed {
		if request.Row, err = request.Claimer.Taken(ctx, conn.PgConn(), request.Claim); err != nil {
			pgclaim.Rollback(ctx, conn, tx)
			return nil, err
		}
		request.Answered = true
		return overTx{}, nil
	}
	request.Answered, request.Claimed, request.Proposal, request.Conn = true, true, proposal, conn.PgConn()
	return claimTx{tx, conn, context.WithoutCancel(ctx)}, nil
}

// claimTx is the transaction of a claimed message. database/sql gives Commit and Rollback no context; whoever waits for
// them closes the socket when it takes too long.
type claimTx struct {
	tx   pgx.Tx
	conn *pgx.Conn
	ctx  context.Context //nolint:containedctx // of BeginTx, as in package stdlib
}

// Commit commits, unless the handler has ended the transaction by SQL.
func (t claimTx) Commit() error {
	if t.outside() {
		return inbox.ErrTxManaged
	}
	return t.tx.Commit(t.ctx)
}

// Rollback rolls back, and tells if the handler has ended the transaction by SQL.
func (t claimTx) Rollback() error {
	if t.outside() {
		return inbox.ErrTxManaged
	}
	return t.tx.Rollback(t.ctx)
}

// outside tells that the handler ended the transaction by SQL. It is known here also where a wrapper hides the connection
// from the store.
func (t claimTx) outside() bool { return !t.conn.IsClosed() && t.conn.PgConn().TxStatus() == 'I' }

// overTx is a transaction that is over.
type overTx struct{}

func (overTx) Commit() error   { return sql.ErrTxDone }
func (overTx) Rollback() error { return nil }
