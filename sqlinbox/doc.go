// Package sqlinbox is the memory of an inbox in an SQL database, over database/sql: PostgreSQL, MariaDB and
// SQLite.
//
//	store, err := sqlinbox.NewStore(ctx, db, sqlinbox.Config{Dialect: sqlinbox.PostgreSQL})
//	in, err := inbox.New(store, inbox.Config{Namespace: "billing"})
//	router.AddMiddleware(in.Middleware)
//	// in the handler:
//	tx, err := sqlinbox.TxFromContext(msg.Context()) // *sql.Tx
//
// The tables come from [Migrate], from [MigrationSQL] run with a tool of your own, or from Config.InitializeSchema.
//
// On PostgreSQL a *sql.DB from pgxinbox.OpenDB costs one round trip less for each message than one from pgx's stdlib;
// package pgxinbox itself does the same on native pgx. Nothing there relies on session state: poolers in transaction mode
// work. Of the drivers for PostgreSQL, pgx's stdlib is tested. On another driver, and behind a wrapper that hides the
// driver's connection (otelsql), a read before COMMIT asks whether the handler ended the transaction by SQL, one round
// trip for each message; a wrapper around the connector of pgxinbox.Connector does without.
//
// # MariaDB and MySQL
//
// MariaDB 10.6 and newer work through github.com/go-sql-driver/mysql, opened with
//
//	user:password@tcp(host:3306)/database?interpolateParams=true&tx_isolation=%27READ-COMMITTED%27&idle_transaction_timeout=60&readTimeout=1m
//
// None of these parameters is required:
//
//   - interpolateParams spares two round trips for each statement with arguments, which is prepared and closed otherwise.
//   - tx_isolation spares the statement that sets Config.Isolation for each transaction: the server's own default is
//     REPEATABLE READ.
//   - idle_transaction_timeout (whole seconds) does what Config.IdleTimeout does on PostgreSQL, and for every
//     transaction of the pool: a client that vanished without closing its connection keeps its message from others until
//     the server notices. It must be longer than any handler is silent towards the database.
//   - readTimeout bounds the wait for each answer of the server. A COMMIT or ROLLBACK that is not answered is given up
//     after Config.CommitTimeout without it, but its connection cannot be closed, and is missing from the pool until the
//     system gives it up, after many minutes. It must be longer than the slowest statement of a handler, and than the
//     wait of [Migrate] for another one that is running.
//
// What differs from PostgreSQL:
//
//   - DDL commits by itself there. Migrations hold a lock of their connection (GET_LOCK) instead of a transaction; one
//     that is killed is taken up again by the next. The right to create Config.Schema is needed only where it is missing.
//   - Before COMMIT a read asks whether the transaction is still the claim's, one round trip for each message: the driver
//     does not show that a handler executed COMMIT, ROLLBACK or DDL (inbox.ErrTxManaged), or that it hid a deadlock.
//   - After a failed statement the transaction goes on, without that statement. A handler that hides the error and
//     returns nil commits the rest. It must not hide a deadlock (1213), nor, with innodb_snapshot_isolation, a changed
//     record (1020): the server has rolled back the whole transaction by then, the claim too. The message is not acked;
//     but what the handler wrote after it was committed at once, unless the DSN has autocommit=0. Returned, either makes
//     the transaction run again.
//   - A lock that a statement of the handler waits for in vain for innodb_lock_wait_timeout (50 seconds by default) makes
//     the transaction run again.
//
// MySQL 8 has SQL of its own here, but nothing was ever run on it. Its DSN must have innodb_lock_wait_timeout=1, which
// [Validate] checks, and transaction_isolation in the place of tx_isolation.
//
// # SQLite
//
// Open the database with
//
//	file:PATH?_txlock=immediate&_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_pragma=synchronous(NORMAL)
//
// (modernc.org/sqlite). It has one writer at a time: the transactions of different messages wait for each other, also
// while a handler runs. A pool of one connection (SetMaxOpenConns(1)) makes that wait fair; a handler that then uses the
// *sql.DB instead of its transaction waits for itself.
package sqlinbox
