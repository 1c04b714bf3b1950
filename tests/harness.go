package tests

import (
	"context"
	"database/sql"
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
	// Server is false for an embedded database: no connection can be lost, no server stopped.
	Server bool
	// AbortsOnError is true where a failed statement aborts the whole transaction (PostgreSQL).
	AbortsOnError bool
	// Isolation are the levels to storm.
	Isolation []sql.IsolationLevel
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
	// Unmigrated leaves the inbox's tables out, and Env.Store nil.
	Unmigrated bool
}

// Env is a store with a business table beside its memory, and the means to look at both.
type Env struct {
	// Space names the schema or file; pass it in Options to share it.
	Space string
	Store inbox.Store
	// Config is the store's, Dialect and Schema included.
	Config sqlinbox.Config
	// DB is a pool of the test's own, past any proxy.
	DB *sql.DB
	// Memory, Consumers and Horizons are the qualified names of the tables.
	Memory, Consumers, Horizons string
	// Effects is the qualified name of the business table: effects(name), without any constraint, so that an effect
	// that happens twice is two rows.
	Effects string

	// Write inserts a business row in the transaction of ctx, as a handler would.
	Write func(ctx context.Context, name string) error
	// Exec executes SQL in the transaction of ctx.
	Exec func(ctx context.Context, sql string) error
	// CommitTx and RollbackTx end the transaction of ctx, as a handler must not.
	CommitTx, RollbackTx func(ctx context.Context) error
	// InUse is how many connections of the store's pool are taken.
	InUse func() int
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

// quoted is a literal for a name that the tests choose themselves.
func quoted(name string) string { return "'" + name + "'" }

// Scale gives full where INBOX_TEST_SCALE=1 (make test-long), else a tenth of it, but never less than least.
func Scale(full, least int) int {
	if os.Getenv("INBOX_TEST_SCALE") == "1" {
		return full
	}
	return max(full/10, least)
}
