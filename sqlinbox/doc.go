// Package sqlinbox is the memory of an inbox in an SQL database, over database/sql: PostgreSQL and SQLite.
//
//	store, err := sqlinbox.NewStore(ctx, db, sqlinbox.Config{Dialect: sqlinbox.PostgreSQL})
//	in, err := inbox.New(store, inbox.Config{Namespace: "billing"})
//	router.AddMiddleware(in.Middleware)
//	// in the handler:
//	tx, err := sqlinbox.TxFromContext(msg.Context()) // *sql.Tx
//
// The tables come from [Migrate], from [MigrationSQL] run with a tool of your own, or from Config.InitializeSchema.
//
// On PostgreSQL the package pgxinbox does the same on native pgx with one round trip less for each message. Nothing
// here relies on session state: poolers in transaction mode work. Of the drivers for PostgreSQL, pgx's stdlib is
// tested; behind a wrapper that hides the driver's connection (and on other drivers) a handler that executes COMMIT
// as SQL is not noticed.
//
// On SQLite open the database with
//
//	file:PATH?_txlock=immediate&_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_pragma=synchronous(NORMAL)
//
// (modernc.org/sqlite). It has one writer at a time: the transactions of different messages wait for each other, also
// while a handler runs. A pool of one connection (SetMaxOpenConns(1)) makes that wait fair; a handler that then uses the
// *sql.DB instead of its transaction waits for itself.
package sqlinbox
