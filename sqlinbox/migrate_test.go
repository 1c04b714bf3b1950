package sqlinbox_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"math/rand/v2"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver of the tests
	"github.com/stretchr/testify/require"
	"modernc.org/sqlite"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox"
	"github.com/watermill-contrib/watermill-inbox/tests/services"
)

// database is an empty place for the inbox's tables: a schema that is not there yet, or a file.
type database struct {
	*sql.DB
	config sqlinbox.Config
	open   func() *sql.DB // another pool
	dsn    string         // of SQLite
	tables string         // a query that lists what is there, with its structure
}

// databases gives one of each kind.
func databases() map[string]func(t *testing.T) *database {
	return map[string]func(t *testing.T) *database{
		"postgresql": func(t *testing.T) *database { return openPostgreSQL(t, nil) },
		"mysql":      openMySQL,
		"sqlite":     openSQLite,
	}
}

func newName() string { return "m_" + strings.ReplaceAll(inbox.NewUUID(), "-", "") }

func opener(t *testing.T, driver, dsn string) func() *sql.DB {
	t.Helper()
	return func() *sql.DB {
		db, err := sql.Open(driver, dsn)
		require.NoError(t, err)
		t.Cleanup(func() { _ = db.Close() })
		return db
	}
}

// openPostgreSQL sets parameters of the session.
func openPostgreSQL(t *testing.T, settings map[string]string) *database {
	t.Helper()
	u, err := url.Parse(services.PostgreSQL(t))
	require.NoError(t, err)
	admin := opener(t, "pgx", u.String())()
	query := u.Query()
	for name, value := range settings {
		query.Set(name, value)
	}
	u.RawQuery = strings.ReplaceAll(query.Encode(), "+", "%20")
	d := &database{open: opener(t, "pgx", u.String()), config: sqlinbox.Config{Dialect: sqlinbox.PostgreSQL, Schema: newName()}}
	d.DB = d.open()
	d.tables = fmt.Sprintf(`
SELECT table_name || '.' || column_name || ' ' || data_type || ' ' || is_nullable || ' ' || coalesce(column_default, '') || ' ' || coalesce(collation_name, '')
FROM information_schema.columns WHERE table_schema = '%[1]s'
UNION ALL SELECT replace(indexdef, '%[1]s', 'schema') FROM pg_indexes WHERE schemaname = '%[1]s'
UNION ALL SELECT conname || ' ' || pg_get_constraintdef(oid) FROM pg_constraint WHERE connamespace = (SELECT oid FROM pg_namespace WHERE nspname = '%[1]s')
ORDER BY 1`, d.config.Schema)
	t.Cleanup(func() {
		_, _ = admin.ExecContext(context.Background(), "DROP SCHEMA IF EXISTS "+d.config.Schema+" CASCADE")
	})
	return d
}

func openMySQL(t *testing.T) *database {
	t.Helper()
	config, err := mysql.ParseDSN(services.MariaDB(t))
	require.NoError(t, err)
	config.InterpolateParams, config.MultiStatements = true, true
	config.Params = map[string]string{"tx_isolation": "'READ-COMMITTED'"}
	d := &database{open: opener(t, "mysql", config.FormatDSN()), config: sqlinbox.Config{Dialect: sqlinbox.MySQL, Schema: newName()}}
	d.DB = d.open()
	d.tables = fmt.Sprintf(`
SELECT concat_ws(' ', table_name, column_name, column_type, is_nullable, column_default, collation_name)
FROM information_schema.columns WHERE table_schema = '%[1]s'
UNION ALL SELECT concat_ws(' ', table_name, index_name, column_name, seq_in_index) FROM information_schema.statistics WHERE table_schema = '%[1]s'
ORDER BY 1`, d.config.Schema)
	admin := d.open()
	t.Cleanup(func() { _, _ = admin.ExecContext(context.Background(), "DROP SCHEMA IF EXISTS "+d.config.Schema) })
	return d
}

func openSQLite(t *testing.T) *database {
	t.Helper()
	dsn := "file:" + filepath.Join(t.TempDir(), "inbox.db") +
		"?_txlock=immediate&_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_pragma=synchronous(NORMAL)"
	d := &database{open: opener(t, "sqlite", dsn), config: sqlinbox.Config{Dialect: sqlinbox.SQLite}, dsn: dsn}
	d.DB = d.open()
	d.tables = "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL AND name <> 'sqlite_sequence' ORDER BY 1"
	return d
}

// structure lists the tables, their columns and indexes.
func (d *database) structure(t *testing.T) []string {
	t.Helper()
	rows, err := d.QueryContext(t.Context(), d.tables)
	require.NoError(t, err)
	defer rows.Close()
	lines := []string{}
	for rows.Next() {
		var line string
		require.NoError(t, rows.Scan(&line))
		lines = append(lines, line)
	}
	require.NoError(t, rows.Err())
	return lines
}

// table gives a qualified name.
func (d *database) table(suffix string) string {
	name := "watermill_inbox" + suffix
	if d.config.Schema != "" {
		name = d.config.Schema + "." + name
	}
	return name
}

// versions gives the applied versions.
func (d *database) versions(t *testing.T) []int {
	t.Helper()
	rows, err := d.QueryContext(t.Context(), "SELECT version FROM "+d.table("_migrations")+" ORDER BY version")
	require.NoError(t, err)
	defer rows.Close()
	var versions []int
	for rows.Next() {
		var version int
		require.NoError(t, rows.Scan(&version))
		versions = append(versions, version)
	}
	require.NoError(t, rows.Err())
	return versions
}

func (d *database) exec(t *testing.T, query string) {
	t.Helper()
	_, err := d.ExecContext(t.Context(), query)
	require.NoError(t, err, query)
}

// handle handles a message on a store over db, and its copy, which is a duplicate if the first was handled.
func handle(t *testing.T, db *sql.DB, config sqlinbox.Config, id string) (handled int) {
	t.Helper()
	store, err := sqlinbox.NewStore(t.Context(), db, config)
	require.NoError(t, err)
	in, err := inbox.New(store, inbox.Config{Consumer: func(*message.Message) string { return "charge" }})
	require.NoError(t, err)
	handler := in.Middleware(sqlinboxHandler(func(context.Context, *sql.Tx) { handled++ }))
	for range 2 {
		_, err = handler(message.NewMessage(id, nil))
		require.NoError(t, err)
	}
	return handled
}

func sqlinboxHandler(fn func(context.Context, *sql.Tx)) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		tx, err := sqlinbox.TxFromContext(msg.Context())
		if err == nil {
			fn(msg.Context(), tx)
		}
		return nil, err
	}
}

func forEachDatabase(t *testing.T, test func(t *testing.T, d *database)) {
	t.Parallel()
	for name, open := range databases() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, open(t))
		})
	}
}

func TestMigrate_UpDownUp(t *testing.T) {
	forEachDatabase(t, func(t *testing.T, d *database) {
		ctx := t.Context()
		require.Empty(t, d.structure(t))
		require.ErrorIs(t, sqlinbox.Validate(ctx, d.DB, d.config), inbox.ErrSchema)
		if d.config.Schema != "" {
			d.exec(t, "CREATE SCHEMA "+d.config.Schema)
		}
		require.NoError(t, sqlinbox.MigrateDown(ctx, d.DB, d.config, 0), "there is nothing to undo")
		require.Empty(t, d.structure(t))

		require.NoError(t, sqlinbox.Migrate(ctx, d.DB, d.config))
		require.NoError(t, sqlinbox.Validate(ctx, d.DB, d.config))
		full, versions := d.structure(t), d.versions(t)
		require.NotEmpty(t, full)
		require.Equal(t, 1, handle(t, d.DB, d.config, "order-42"))

		require.NoError(t, sqlinbox.Migrate(ctx, d.DB, d.config), "a second time")
		require.NoError(t, sqlinbox.MigrateDown(ctx, d.DB, d.config, len(versions)), "to where it is")
		require.Equal(t, full, d.structure(t))
		require.Equal(t, versions, d.versions(t))
		require.Equal(t, 0, handle(t, d.DB, d.config, "order-42"), "the memory is still there")

		for version := len(versions) - 1; version >= 0; version-- {
			require.NoError(t, sqlinbox.MigrateDown(ctx, d.DB, d.config, version))
			err := sqlinbox.Validate(ctx, d.DB, d.config)
			require.ErrorIs(t, err, inbox.ErrSchema)
			require.ErrorContains(t, err, "sqlinbox.Migrate")
			if version > 0 {
				require.Equal(t, versions[:version], d.versions(t))
				require.NotEqual(t, full, d.structure(t))
				// From every version the way up leads to the same tables.
				require.NoError(t, sqlinbox.Migrate(ctx, d.DB, d.config))
				require.Equal(t, full, d.structure(t))
				require.NoError(t, sqlinbox.MigrateDown(ctx, d.DB, d.config, version))
			}
		}
		require.Empty(t, d.structure(t))

		require.NoError(t, sqlinbox.Migrate(ctx, d.DB, d.config))
		require.Equal(t, full, d.structure(t))
		require.Equal(t, 1, handle(t, d.DB, d.config, "order-42"), "the memory went with its table")
		require.Equal(t, 0, d.Stats().InUse)

		var bad *inbox.ConfigError
		require.ErrorAs(t, sqlinbox.MigrateDown(ctx, d.DB, d.config, -1), &bad)
	})
}

func TestMigrationSQL_ByHand(t *testing.T) {
	forEachDatabase(t, func(t *testing.T, d *database) {
		ctx := t.Context()
		up, down, err := sqlinbox.MigrationSQL(d.config)
		require.NoError(t, err)
		d.exec(t, up)
		require.NoError(t, sqlinbox.Validate(ctx, d.DB, d.config))
		byHand, versions := d.structure(t), d.versions(t)
		require.Equal(t, 1, handle(t, d.DB, d.config, "order-42"))
		require.NoError(t, sqlinbox.Migrate(ctx, d.DB, d.config), "there is nothing to do")
		require.Equal(t, 0, handle(t, d.DB, d.config, "order-42"))

		require.NoError(t, sqlinbox.MigrateDown(ctx, d.DB, d.config, 0))
		require.NoError(t, sqlinbox.Migrate(ctx, d.DB, d.config))
		require.Equal(t, d.structure(t), byHand)
		require.Equal(t, d.versions(t), versions)

		d.exec(t, down)
		require.Empty(t, d.structure(t))
		require.ErrorIs(t, sqlinbox.Validate(ctx, d.DB, d.config), inbox.ErrSchema)
	})
}

// TestMigrationSQL_Unqualified leaves the schema to the session.
func TestMigrationSQL_Unqualified(t *testing.T) {
	t.Parallel()
	d := openPostgreSQL(t, nil)
	d.exec(t, "CREATE SCHEMA "+d.config.Schema)
	up, down, err := sqlinbox.MigrationSQL(sqlinbox.Config{Dialect: sqlinbox.PostgreSQL})
	require.NoError(t, err)
	require.NotContains(t, up, "CREATE SCHEMA")
	d.exec(t, "SET search_path = "+d.config.Schema+";"+up)
	require.NoError(t, sqlinbox.Validate(t.Context(), d.DB, d.config))
	d.exec(t, "SET search_path = "+d.config.Schema+";"+down)
	require.Empty(t, d.structure(t))
}

func TestInitializeSchema(t *testing.T) {
	forEachDatabase(t, func(t *testing.T, d *database) {
		_, err := sqlinbox.NewStore(t.Context(), d.DB, d.config)
		require.ErrorIs(t, err, inbox.ErrSchema)
		require.ErrorContains(t, err, "InitializeSchema")
		require.Empty(t, d.structure(t), "nothing is made unasked")

		d.config.InitializeSchema = true
		require.Equal(t, 1, handle(t, d.DB, d.config, "order-42"))
		require.Equal(t, 0, handle(t, d.open(), d.config, "order-42"), "at the next start")
	})
}

func TestMigrate_OtherVersions(t *testing.T) {
	forEachDatabase(t, func(t *testing.T, d *database) {
		ctx := t.Context()
		require.NoError(t, sqlinbox.Migrate(ctx, d.DB, d.config))
		latest := len(d.versions(t))
		note := func(version int) {
			d.exec(t, fmt.Sprintf("INSERT INTO %s (version, name) VALUES (%d, 'later')", d.table("_migrations"), version))
		}

		note(latest + 1)
		full := d.structure(t)
		require.NoError(t, sqlinbox.Validate(ctx, d.DB, d.config), "a newer version is tolerated")
		require.NoError(t, sqlinbox.Migrate(ctx, d.DB, d.config))
		require.Len(t, d.versions(t), latest+1)
		require.Equal(t, 1, handle(t, d.DB, d.config, "order-42"))
		err := sqlinbox.MigrateDown(ctx, d.DB, d.config, 0)
		require.ErrorIs(t, err, inbox.ErrSchema, "this program cannot undo what it does not know")
		require.ErrorContains(t, err, "newer than this program")
		require.Equal(t, full, d.structure(t))
		require.Len(t, d.versions(t), latest+1)

		note(latest + 3)
		for _, err := range []error{
			sqlinbox.Validate(ctx, d.DB, d.config), sqlinbox.Migrate(ctx, d.DB, d.config), sqlinbox.MigrateDown(ctx, d.DB, d.config, 0),
		} {
			require.ErrorIs(t, err, inbox.ErrSchema, "a gap")
			require.ErrorContains(t, err, fmt.Sprintf("from version %d to %d", latest+1, latest+3))
		}
		require.Equal(t, full, d.structure(t))
		require.Equal(t, 0, d.Stats().InUse)
	})
}

// TestMigrate_AtStricterLevels begins migrations at once where the database's own isolation level would keep showing
// each of them the tables as they were before it got the lock.
func TestMigrate_AtStricterLevels(t *testing.T) {
	t.Parallel()
	for _, level := range []string{"repeatable read", "serializable"} {
		t.Run(level, func(t *testing.T) {
			t.Parallel()
			d := openPostgreSQL(t, map[string]string{"default_transaction_isolation": level})
			for _, err := range migrateAtOnce(t, d, 8) {
				require.NoError(t, err)
			}
			require.NoError(t, sqlinbox.Validate(t.Context(), d.DB, d.config))
			require.Equal(t, 1, handle(t, d.DB, d.config, "order-42"))
		})
	}
}

// migrateAtOnce holds the migrations up at the lock until all of them are there.
func migrateAtOnce(t *testing.T, d *database, n int) []error {
	t.Helper()
	// The first one gets the lock and waits for this transaction, which has its table's name.
	d.exec(t, "CREATE SCHEMA "+d.config.Schema)
	holder, err := d.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	defer holder.Rollback() //nolint:errcheck // at the latest
	_, err = holder.ExecContext(t.Context(), "CREATE TABLE "+d.table("_migrations")+" ()")
	require.NoError(t, err)

	results := make(chan error, n)
	for range n {
		db := d.open()
		go func() { results <- sqlinbox.Migrate(context.Background(), db, d.config) }()
	}
	requireWaiting(t, d, n)
	require.NoError(t, holder.Rollback())
	var errs []error
	for range n {
		errs = append(errs, <-results)
	}
	return errs
}

// requireWaiting waits until so many sessions wait for a lock in statements about the schema or its lock.
func requireWaiting(t *testing.T, d *database, n int) {
	t.Helper()
	var waiting int
	require.Eventually(t, func() bool {
		// The transaction of the first one blocks the second, and so on: a chain of waits that ends at this schema.
		err := d.QueryRowContext(t.Context(), `
WITH RECURSIVE waiting AS (
  SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%' || $1 || '%'
  UNION
  SELECT a.pid FROM pg_stat_activity AS a JOIN waiting ON waiting.pid = ANY (pg_blocking_pids(a.pid))
) SELECT count(*) FROM waiting`, d.config.Schema).Scan(&waiting)
		return err == nil && waiting >= n
	}, 20*time.Second, 5*time.Millisecond, "%d of %d migrations wait", waiting, n)
}

// TestMigrate_Roles migrates with no more rights than necessary.
func TestMigrate_Roles(t *testing.T) {
	t.Parallel()
	d := openPostgreSQL(t, nil)
	role := newName()
	d.exec(t, "CREATE ROLE "+role)
	admin := d.open()
	t.Cleanup(func() {
		_, err := admin.ExecContext(context.Background(), "DROP OWNED BY "+role+" CASCADE; DROP ROLE "+role)
		require.NoError(t, err)
	})
	as := openPostgreSQL(t, map[string]string{"role": role})
	as.config = d.config
	ctx := t.Context()
	permission := func(err error) {
		t.Helper()
		require.ErrorContains(t, err, "inbox: ")
		require.ErrorContains(t, err, "42501", "the database's own error")
	}

	permission(sqlinbox.Migrate(ctx, as.DB, d.config)) // no schema, and no right to create one
	d.exec(t, "CREATE SCHEMA "+d.config.Schema)
	permission(sqlinbox.Migrate(ctx, as.DB, d.config)) // no right in the schema
	require.Empty(t, d.structure(t))
	require.Equal(t, 0, as.Stats().InUse)

	d.exec(t, "GRANT USAGE, CREATE ON SCHEMA "+d.config.Schema+" TO "+role) // but not on the database
	require.NoError(t, sqlinbox.Migrate(ctx, as.DB, d.config))
	require.Equal(t, 1, handle(t, as.DB, d.config, "order-1"))
	require.NoError(t, sqlinbox.MigrateDown(ctx, as.DB, d.config, 0))

	// A program whose tables somebody else makes needs these rights.
	require.NoError(t, sqlinbox.Migrate(ctx, d.DB, d.config))
	d.exec(t, "REVOKE CREATE ON SCHEMA "+d.config.Schema+" FROM "+role)
	permission(sqlinbox.Validate(ctx, as.DB, d.config))
	d.exec(t, "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA "+d.config.Schema+" TO "+role)
	require.NoError(t, sqlinbox.Validate(ctx, as.DB, d.config))
	require.Equal(t, 1, handle(t, as.DB, d.config, "order-2"))
}

// TestMigrate_CancelledWhileWaiting gives up a migration that another transaction keeps waiting.
func TestMigrate_CancelledWhileWaiting(t *testing.T) {
	forEachDatabase(t, func(t *testing.T, d *database) {
		holder, err := d.open().Conn(t.Context())
		require.NoError(t, err)
		defer holder.Close()
		release := "ROLLBACK"
		switch d.config.Dialect {
		case sqlinbox.PostgreSQL:
			d.exec(t, "CREATE SCHEMA "+d.config.Schema)
			_, err = holder.ExecContext(t.Context(), "BEGIN; CREATE TABLE "+d.table("_consumers")+" ()")
		case sqlinbox.MySQL:
			require.NoError(t, sqlinbox.Migrate(t.Context(), d.DB, d.config))
			_, err = holder.ExecContext(t.Context(), "LOCK TABLES "+d.table("_migrations")+" WRITE")
			release = "UNLOCK TABLES"
		default:
			_, err = holder.ExecContext(t.Context(), "BEGIN IMMEDIATE")
		}
		require.NoError(t, err)
		requireGivesUp(t, d)
		_, err = holder.ExecContext(t.Context(), release)
		require.NoError(t, err)
		requireQuickly(t, "a migration after those that were given up", func() error {
			return sqlinbox.Migrate(context.Background(), d.open(), d.config)
		})
		require.NoError(t, sqlinbox.Validate(t.Context(), d.DB, d.config))
		require.Equal(t, 1, handle(t, d.DB, d.config, "order-42"))
	})
}

// requireGivesUp migrates with contexts that end.
func requireGivesUp(t *testing.T, d *database) {
	t.Helper()
	for _, want := range []error{context.DeadlineExceeded, context.Canceled} {
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		if want == context.Canceled { //nolint:errorlint // one of two values
			ctx, cancel = context.WithCancel(t.Context())
			time.AfterFunc(200*time.Millisecond, cancel)
		}
		began := time.Now()
		err := sqlinbox.Migrate(ctx, d.DB, d.config)
		cancel()
		require.ErrorIs(t, err, want)
		require.Less(t, time.Since(began), 8*time.Second)
		require.Equal(t, 0, d.Stats().InUse)
	}
}

func requireQuickly(t *testing.T, what string, f func() error) {
	t.Helper()
	began := time.Now()
	require.NoError(t, f(), what)
	require.Less(t, time.Since(began), 8*time.Second, what)
}

// TestMigrate_CancelledAtAnyMoment cancels migrations all over, and looks for a transaction or lock that one of them
// left in the pool.
func TestMigrate_CancelledAtAnyMoment(t *testing.T) {
	forEachDatabase(t, func(t *testing.T, d *database) {
		began := time.Now()
		require.NoError(t, sqlinbox.Migrate(t.Context(), d.open(), d.config))
		require.NoError(t, sqlinbox.MigrateDown(t.Context(), d.open(), d.config, 0))
		whole := time.Since(began)

		cancelled := 0
		for i := range 60 {
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(rand.N(whole), cancel)
			err := sqlinbox.Migrate(ctx, d.DB, d.config)
			if err == nil {
				err = sqlinbox.MigrateDown(ctx, d.DB, d.config, 0)
				if d.config.Dialect == sqlinbox.MySQL { // half of its DDL may be done: only the same again leads on
					require.NoError(t, sqlinbox.MigrateDown(t.Context(), d.DB, d.config, 0))
				}
			}
			cancel()
			if err != nil {
				require.ErrorIs(t, err, context.Canceled, "round %d", i)
				cancelled++
			}
			require.Equal(t, 0, d.Stats().InUse)
		}
		require.Positive(t, cancelled, "no migration was cancelled")
		// The pool of the cancelled ones is still open.
		requireQuickly(t, "a migration beside the pool", func() error {
			return sqlinbox.Migrate(context.Background(), d.open(), d.config)
		})
		require.NoError(t, sqlinbox.Validate(t.Context(), d.DB, d.config))
		require.Equal(t, 1, handle(t, d.DB, d.config, "order-42"))
		require.True(t, slices.IsSorted(d.versions(t)))
	})
}

// TestMigrate_CancelledAtEachStatement has the context end with one statement after the other, as soon as it is done
// and before the migration knows: a driver then reports a statement as cancelled that had its effect. Whatever it was,
// nothing may be left open in the pool.
func TestMigrate_CancelledAtEachStatement(t *testing.T) {
	t.Parallel()
	for statement := 1; ; statement++ {
		d := openSQLite(t)
		ctx, cancel := context.WithCancel(t.Context())
		connector := &cancellingConnector{dsn: d.dsn, at: statement, cancel: cancel}
		db := sql.OpenDB(connector)
		defer db.Close()
		err := sqlinbox.Migrate(ctx, db, d.config)
		cancel()
		if connector.at > 0 { // it has fewer statements
			require.NoError(t, err)
			require.Greater(t, statement, 5)
			return
		}
		require.ErrorIs(t, err, context.Canceled, "statement %d", statement)
		require.Equal(t, 0, db.Stats().InUse)
		_, err = d.ExecContext(t.Context(), "PRAGMA busy_timeout = 0; BEGIN IMMEDIATE; ROLLBACK; PRAGMA busy_timeout = 10000")
		require.NoError(t, err, "statement %d left a transaction in the pool", statement)
		require.NoError(t, sqlinbox.Migrate(t.Context(), db, d.config), "on the same connection")
		require.NoError(t, sqlinbox.Validate(t.Context(), d.DB, d.config))
	}
}

// cancellingConnector opens connections that call cancel when a number of statements was executed.
type cancellingConnector struct {
	dsn    string
	at     int
	cancel context.CancelFunc
}

func (c *cancellingConnector) Driver() driver.Driver { return &sqlite.Driver{} }

func (c *cancellingConnector) Connect(context.Context) (driver.Conn, error) {
	conn, err := c.Driver().Open(c.dsn)
	if err != nil {
		return nil, err
	}
	return &cancellingConn{conn.(sqliteConn), c}, nil
}

// sqliteConn is what database/sql uses of the driver's connections.
type sqliteConn interface {
	driver.Conn
	driver.ExecerContext
	driver.QueryerContext
	driver.ConnBeginTx
	driver.ConnPrepareContext
	driver.SessionResetter
	driver.Validator
}

type cancellingConn struct {
	sqliteConn
	connector *cancellingConnector
}

func (c *cancellingConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	result, err := c.sqliteConn.ExecContext(context.WithoutCancel(ctx), query, args)
	if c.connector.at--; c.connector.at == 0 {
		c.connector.cancel()
		return nil, ctx.Err()
	}
	return result, err
}
