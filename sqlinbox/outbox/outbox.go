// Package outbox pairs the inbox with watermill-sql/v3: what a handler publishes becomes rows of watermill-sql in the
// handler's own transaction, and its subscriber (or the Forwarder) carries them on after the commit.
//
//	out, err := outbox.New(outbox.Config{SchemaAdapter: sql.DefaultPostgreSQLSchema{}})
//	in, err := inbox.New(store, inbox.Config{Outbox: out})              // for what handlers return
//	pub, err := inbox.NewTxPublisher(out, inbox.TxPublisherConfig{})    // for an EventBus inside handlers
//
// It works on both stores. On pgxinbox the rows travel together with COMMIT, at the price of no round trip; a failed
// insert is then the commit's error. The tables of the topics must be there before (the schema adapter's
// SchemaInitializingQueries, or a subscriber with InitializeSchema): watermill-sql never creates them in a transaction.
//
// watermill-sql/v3 binds metadata, and JSON payloads, as bytes. pgx passes those as bytea in the query modes that do not ask
// the server for types (exec, simple protocol, behind an old pooler), which PostgreSQL refuses for a JSON column: use
// cached statements or cached descriptions there.
//
// watermill-sql/v4 needs no package: in Config.Outbox return its publisher on TxFromPgx or TxFromStdSQL of the
// transaction in the context.
package outbox

import (
	"context"
	"database/sql"
	"database/sql/driver"

	"github.com/ThreeDotsLabs/watermill"
	wsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox/pgxinbox"
)

// Config is how outgoing messages are stored.
type Config struct {
	// SchemaAdapter is watermill-sql's, for the inbox's own database. Required.
	SchemaAdapter wsql.SchemaAdapter
	// Logger is that of watermill-sql's publisher. Defaults to watermill.NopLogger.
	Logger watermill.LoggerAdapter
}

// New gives an outbox for inbox.Config.Outbox and inbox.NewTxPublisher. It returns an [*inbox.ConfigError] without a
// schema adapter.
func New(config Config) (inbox.Outbox, error) {
	if config.SchemaAdapter == nil {
		return nil, &inbox.ConfigError{Field: "outbox.Config.SchemaAdapter", Value: nil, Reason: "must not be nil"}
	}
	if config.Logger == nil {
		config.Logger = watermill.NopLogger{}
	}
	return func(ctx context.Context) (message.Publisher, error) {
		db, err := executor(ctx)
		if err != nil {
			return nil, err
		}
		return wsql.NewPublisher(db, wsql.PublisherConfig{SchemaAdapter: config.SchemaAdapter}, config.Logger)
	}, nil
}

// executor gives what watermill-sql's publisher inserts with, in the transaction of ctx.
func executor(ctx context.Context) (wsql.ContextExecutor, error) {
	if tx, err := sqlinbox.TxFromContext(ctx); err == nil {
		return tx, nil
	}
	if _, err := pgxinbox.TxFromContext(ctx); err != nil {
		return nil, err
	}
	return atCommit{ctx: ctx}, nil
}

// atCommit keeps the publisher's insert for COMMIT. The publisher executes without a context of its own, so this one
// holds the handler's for the one call that it lives for. Of the interface it calls ExecContext only, as long as it does
// not create tables: the rest is not there.
type atCommit struct {
	wsql.ContextExecutor
	ctx context.Context //nolint:containedctx // see above
}

// ExecContext keeps the insert.
func (a atCommit) ExecContext(_ context.Context, query string, args ...any) (sql.Result, error) {
	return driver.ResultNoRows, pgxinbox.ExecAtCommit(a.ctx, query, args...) //nolint:contextcheck // see atCommit
}
