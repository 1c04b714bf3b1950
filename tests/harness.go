package tests

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox"
)

// Features declare how a store's database differs; a case that does not fit one is not run on it.
type Features struct {
	// Name is the column in the table of scenarios: "pgx", "pgx-sql", "sqlite".
	Name string
	// Variant tells several harnesses of one column apart, see Child. Defaults to none.
	Variant string
	// Server is false for an embedded database: no connection can be lost, no server stopped.
	Server bool
	// StartServer starts a server that a case may stop and start; Options.DSN leads to it. Needed where Server is true.
	StartServer func(t testing.TB) Server
	// RefusesTxEnd is true where the handler's transaction itself refuses Commit and Rollback (pgx). Elsewhere they end
	// the transaction, which is found out behind the handler.
	RefusesTxEnd bool
	// SeesTxEndSQL is true where a handler that executes COMMIT or ROLLBACK as SQL and then returns an error of its own is
	// told of both. On MariaDB the driver does not show it, and only a commit is worth a question.
	SeesTxEndSQL bool
	// NoOutbox is true where the harness's outbox does not work: watermill-sql/v3 binds JSON as bytes, which pgx passes as
	// bytea in the modes that do not ask the server for types.
	NoOutbox bool
	// AbortsOnError is true where a failed statement aborts the whole transaction (PostgreSQL).
	AbortsOnError bool
	// DeferredConstraints is true where a constraint can be left to COMMIT to check.
	DeferredConstraints bool
	// ReadOnly is the statement after which a connection refuses writes from its next transaction on. Empty where
	// nobody has a connection for himself (a pooler).
	ReadOnly string
	// Isolation are the levels to storm.
	Isolation []sql.IsolationLevel
}

// Server is a database server of one test. Its address stays the same when it is stopped and started.
type Server interface {
	DSN() string
	Stop()
	Start()
}

// Child is the name by which the children of this harness find it, see IsChildOf: the column, with the variant in
// front.
func (f Features) Child() string {
	if f.Variant == "" {
		return f.Name
	}
	return f.Variant + "/" + f.Name
}

// Harness opens a store on one database through one driver. It registers its own cleanup with t.
type Harness func(t testing.TB, o Options) *Env

// Options are what a case wants of its environment; the zero value is a fresh one with a migrated schema of its own.
type Options struct {
	// Space is an existing environment's, to open a second store on the same tables (in another process, say).
	Space string
	// Config is the store's; the harness fills in Dialect and Schema.
	Config sqlinbox.Config
	// PoolSize is the number of connections. Defaults to 16.
	PoolSize int
	// DSN is another server than the shared one. Ignored where there is no server.
	DSN string
	// Via gives the address to dial instead of the server's: a proxy in front of it. Ignored where there is no server.
	Via func(address string) string
	// OwnDatabase makes a database for a fresh space, not a part of the shared one; a second environment gets at it by
	// DSN and Space. Ignored where every space is a database.
	OwnDatabase bool
	// BeforeCommit is called before each COMMIT of the store's pool, on the goroutine that commits: a place to be killed.
	BeforeCommit func()
	// Unmigrated leaves the inbox's tables out, and Env.Store nil.
	Unmigrated bool
}

// Env is a store with a business table beside its memory, and the means to look at both.
type Env struct {
	// Space names the schema or file; pass it in Options to share it. A name that begins with it is a space too, which
	// Migrate has to make.
	Space string
	// DSN is the database's; pass it in Options too where it is not the shared one's.
	DSN   string
	Store inbox.Store
	// Config is the store's, Dialect and Schema included.
	Config sqlinbox.Config
	// DB is a pool of the test's own, past any proxy.
	DB *sql.DB
	// Memory, Consumers, Horizons and Migrations are the qualified names of the tables.
	Memory, Consumers, Horizons, Migrations string
	// Effects is the qualified name of the business table: effects(name), without any constraint, so that an effect
	// that happens twice is two rows.
	Effects string

	// Write inserts a business row in the transaction of ctx, as a handler would.
	Write func(ctx context.Context, name string) error
	// Exec executes SQL in the transaction of ctx.
	Exec func(ctx context.Context, sql string) error
	// CommitTx and RollbackTx end the transaction of ctx, as a handler must not.
	CommitTx, RollbackTx func(ctx context.Context) error
	// Produced is the qualified name of the table of recorded messages, Operations that of the done operations.
	Produced, Operations string
	// Outbox writes outgoing messages in the transaction of ctx; Outgoing gives the payloads of the committed ones, in
	// order.
	Outbox   inbox.Outbox
	Outgoing func(t testing.TB) []string
	// InUse is how many connections of the store's pool are taken.
	InUse func() int
	// Locks counts the locks in the environment's database that outlive a statement, whoever holds them.
	Locks func(ctx context.Context) (int, error)
	// Cause gives the database's own error inside err, nil if there is none.
	Cause func(err error) error
	// Open makes another store on the same pool with another configuration; Schema and Dialect are filled in.
	Open func(ctx context.Context, config sqlinbox.Config) (inbox.Store, error)
}

// Count counts the committed effects of a name.
func (e *Env) Count(t testing.TB, name string) int {
	t.Helper()
	return e.scalar(t, "SELECT count(*) FROM "+e.Effects+" WHERE name = "+quoted(name))
}

// Total counts all committed effects.
func (e *Env) Total(t testing.TB) int {
	t.Helper()
	return e.scalar(t, "SELECT count(*) FROM "+e.Effects)
}

// Rows counts the rows of the memory.
func (e *Env) Rows(t testing.TB) int {
	t.Helper()
	return e.scalar(t, "SELECT count(*) FROM "+e.Memory)
}

func (e *Env) scalar(t testing.TB, query string) int {
	t.Helper()
	var n int
	require.NoError(t, e.DB.QueryRowContext(context.Background(), query).Scan(&n))
	return n
}

// Bytes16 is a literal of 16 bytes, as ids are stored.
func (e *Env) Bytes16(id inbox.StorageKey) string {
	if e.Config.Dialect == sqlinbox.PostgreSQL {
		return quoted(id.String())
	}
	return fmt.Sprintf("x'%x'", id[:])
}

// quoted is a literal for a name that the tests choose themselves.
func quoted(name string) string { return "'" + name + "'" }

// Scale gives full where INBOX_TEST_SCALE=1 (make test-long), else a tenth of it, but never less than least.
func Scale(full, least int) int {
	if os.Getenv("INBOX_TEST_SCALE") == "1" {
		return full
	}
	return max(full/10, least)
}
