// Package pgxinbox is the memory of an inbox in PostgreSQL, on native pgx: BEGIN and the claim of the message travel in
// one round trip, so that a first delivery costs exactly the round trips of a bare transaction.
//
//	store, err := pgxinbox.NewStore(ctx, pool, pgxinbox.Config{})
//	in, err := inbox.New(store, inbox.Config{Namespace: "billing"})
//	router.AddMiddleware(in.Middleware)
//	// in the handler:
//	tx, err := pgxinbox.TxFromContext(msg.Context()) // pgx.Tx
//
// The tables are those of package sqlinbox: a service may use both on one schema, and a message that one of them has
// handled is a duplicate for the other. Every query mode of pgx works, also behind a pooler in transaction mode;
// prefer the default (cached statements), which behind pgbouncer needs version 1.21 and max_prepared_statements.
//
// A handler that executes "ROLLBACK; BEGIN" as SQL loses the claim with its transaction, and this is not noticed: the
// transaction belongs to the inbox.
package pgxinbox
