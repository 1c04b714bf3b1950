package tests_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox/pgxinbox"
	"github.com/watermill-contrib/watermill-inbox/tests"
	"github.com/watermill-contrib/watermill-inbox/tests/services"
)

// postgresSpace is a schema of its own on a PostgreSQL server, with a business table.
type postgresSpace struct {
	dsn    string // past any proxy
	via    string // through it
	schema string
	db     *sql.DB
}

func openPostgresSpace(t testing.TB, o tests.Options) postgresSpace {
	t.Helper()
	ctx := context.Background()
	s := postgresSpace{dsn: o.DSN, schema: o.Space}
	if s.dsn == "" {
		s.dsn = services.PostgreSQL(t)
	}
	if o.OwnDatabase && s.schema == "" {
		s.dsn = createDatabase(t, s.dsn)
	}
	s.via = s.dsn
	if o.Via != nil {
		u, err := url.Parse(s.dsn)
		require.NoError(t, err)
		u.Host = o.Via(net.JoinHostPort(u.Hostname(), u.Port()))
		s.via = u.String()
	}
	var err error
	s.db, err = sql.Open("pgx", s.dsn)
	require.NoError(t, err)
	s.db.SetMaxOpenConns(4)
	t.Cleanup(func() { _ = s.db.Close() })
	if s.schema != "" {
		return s
	}
	s.schema = "t_" + strings.ReplaceAll(inbox.NewUUID(), "-", "")
	_, err = s.db.ExecContext(ctx, fmt.Sprintf(`CREATE SCHEMA %s; CREATE TABLE %[1]s.effects (name text NOT NULL)`, s.schema))
	require.NoError(t, err)
	t.Cleanup(func() {
		// A case that failed may have left a transaction open.
		ctx, cancel := context.WithTimeout(ctx, cleanupTimeout)
		defer cancel()
		_, _ = s.db.ExecContext(ctx, "DROP SCHEMA "+s.schema+" CASCADE")
	})
	return s
}

const cleanupTimeout = 10 * time.Second

// createDatabase makes a database of the test's own and gives its address.
func createDatabase(t testing.TB, dsn string) string {
	t.Helper()
	ctx := context.Background()
	db, err := sql.Open("pgx", dsn)
	require.NoError(t, err)
	name := "t_" + strings.ReplaceAll(inbox.NewUUID(), "-", "")
	_, err = db.ExecContext(ctx, "CREATE DATABASE "+name)
	require.NoError(t, err)
	t.Cleanup(func() {
		defer db.Close() // nothing is left to lose
		ctx, cancel := context.WithTimeout(ctx, cleanupTimeout)
		defer cancel()
		_, _ = db.ExecContext(ctx, "DROP DATABASE "+name+" WITH (FORCE)")
	})
	own, err := url.Parse(dsn)
	require.NoError(t, err)
	own.Path = "/" + name
	return own.String()
}

// commitTracer calls a function before each COMMIT of a connection.
type commitTracer struct{ before func() }

func (c commitTracer) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	if strings.EqualFold(data.SQL, "commit") {
		c.before()
	}
	return ctx
}

func (commitTracer) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// startPostgreSQL starts a server of the test's own.
func startPostgreSQL(t testing.TB) tests.Server {
	t.Helper()
	return services.StartPostgreSQL(t)
}

// env fills in what the two drivers share.
func (s postgresSpace) env(config sqlinbox.Config) *tests.Env {
	table := func(suffix string) string { return `"` + s.schema + `"."` + prefixOf(config) + suffix + `"` }
	return &tests.Env{
		Space: s.schema, DSN: s.dsn, Config: config, DB: s.db,
		Memory: table(""), Produced: table("_produced"), Operations: table("_operations"), Consumers: table("_consumers"), Horizons: table("_horizons"), Migrations: table("_migrations"),
		Effects: `"` + s.schema + `".effects`,
		Locks:   s.locks,
		Cause: func(err error) error {
			var cause *pgconn.PgError
			if errors.As(err, &cause) {
				return cause
			}
			return nil
		},
	}
}

// locks counts advisory locks: what migrations and claims take.
func (s postgresSpace) locks(ctx context.Context) (n int, err error) {
	const query = `SELECT count(*) FROM pg_locks
WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`
	err = s.db.QueryRowContext(ctx, query).Scan(&n)
	return n, err
}

func prefixOf(config sqlinbox.Config) string {
	if config.TablePrefix == "" {
		return "watermill_inbox"
	}
	return config.TablePrefix
}

func poolSize(o tests.Options) int {
	if o.PoolSize == 0 {
		return 16
	}
	return o.PoolSize
}

// pgxHarness is PostgreSQL through native pgx.
func pgxHarness(t testing.TB, o tests.Options) *tests.Env {
	t.Helper()
	ctx := context.Background()
	s := openPostgresSpace(t, o)
	config, err := pgxpool.ParseConfig(s.via)
	require.NoError(t, err)
	config.MaxConns = int32(poolSize(o))
	sparePooler(s.via, &config.ConnConfig.Config)
	if o.BeforeCommit != nil {
		config.ConnConfig.Tracer = commitTracer{o.BeforeCommit}
	}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	require.NoError(t, err)
	t.Cleanup(func() { closePool(pool) })

	o.Config.Schema, o.Config.Dialect = s.schema, sqlinbox.PostgreSQL
	env := s.env(o.Config)
	env.Config.Dialect = sqlinbox.PostgreSQL
	withOutbox(t, env, o.Space == "")
	env.InUse = func() int { return int(pool.Stat().AcquiredConns()) }
	env.Exec = func(ctx context.Context, query string) error {
		tx, err := pgxinbox.TxFromContext(ctx)
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, query)
		return err
	}
	env.Write = func(ctx context.Context, name string) error {
		tx, err := pgxinbox.TxFromContext(ctx)
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, "INSERT INTO "+env.Effects+" (name) VALUES ($1)", name)
		return err
	}
	env.CommitTx = func(ctx context.Context) error {
		tx, err := pgxinbox.TxFromContext(ctx)
		if err != nil {
			return err
		}
		return tx.Commit(ctx)
	}
	env.RollbackTx = func(ctx context.Context) error {
		tx, err := pgxinbox.TxFromContext(ctx)
		if err != nil {
			return err
		}
		return tx.Rollback(ctx)
	}
	env.Open = func(ctx context.Context, config sqlinbox.Config) (inbox.Store, error) {
		if config.Schema == "" {
			config.Schema = s.schema
		}
		return pgxinbox.NewStore(ctx, pool, config)
	}
	if o.Unmigrated {
		return env
	}
	if o.Space == "" {
		require.NoError(t, pgxinbox.Migrate(ctx, pool, env.Config))
	}
	env.Store, err = env.Open(ctx, env.Config)
	require.NoError(t, err)
	return env
}

// closePool does not wait for ever for connections that a failed case has left behind.
func closePool(pool *pgxpool.Pool) {
	closed := make(chan struct{})
	go func() {
		pool.Close()
		close(closed)
	}()
	select {
	case <-closed:
	case <-time.After(cleanupTimeout):
	}
}

// pgxSQLHarness is PostgreSQL through database/sql and pgx's stdlib.
func pgxSQLHarness(t testing.TB, o tests.Options) *tests.Env {
	t.Helper()
	return postgresSQLHarness(t, o, stdlib.OpenDB)
}

// openDBHarness is PostgreSQL through database/sql, the claim sent with BEGIN.
func openDBHarness(t testing.TB, o tests.Options) *tests.Env {
	t.Helper()
	return postgresSQLHarness(t, o, pgxinbox.OpenDB)
}

func postgresSQLHarness(t testing.TB, o tests.Options, open func(pgx.ConnConfig, ...stdlib.OptionOpenDB) *sql.DB) *tests.Env {
	t.Helper()
	s := openPostgresSpace(t, o)
	config, err := pgx.ParseConfig(s.via)
	require.NoError(t, err)
	if o.BeforeCommit != nil {
		config.Tracer = commitTracer{o.BeforeCommit}
	}
	sparePooler(s.via, &config.Config)
	db := open(*config)
	t.Cleanup(func() { _ = db.Close() })
	o.Config.Schema, o.Config.Dialect = s.schema, sqlinbox.PostgreSQL
	env := s.env(o.Config)
	withOutbox(t, env, o.Space == "")
	openSQL(t, env, db, o, "INSERT INTO "+env.Effects+" (name) VALUES ($1)")
	return env
}

// openSQL fills in what every harness on database/sql shares.
func openSQL(t testing.TB, env *tests.Env, db *sql.DB, o tests.Options, insert string) {
	t.Helper()
	ctx := context.Background()
	db.SetMaxOpenConns(poolSize(o))
	db.SetMaxIdleConns(poolSize(o))
	env.InUse = func() int { return db.Stats().InUse }
	env.Exec = func(ctx context.Context, query string) error {
		tx, err := sqlinbox.TxFromContext(ctx)
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, query)
		return err
	}
	env.Write = func(ctx context.Context, name string) error {
		tx, err := sqlinbox.TxFromContext(ctx)
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, insert, name)
		return err
	}
	env.CommitTx = func(ctx context.Context) error {
		tx, err := sqlinbox.TxFromContext(ctx)
		if err != nil {
			return err
		}
		return tx.Commit()
	}
	env.RollbackTx = func(ctx context.Context) error {
		tx, err := sqlinbox.TxFromContext(ctx)
		if err != nil {
			return err
		}
		return tx.Rollback()
	}
	env.Open = func(ctx context.Context, config sqlinbox.Config) (inbox.Store, error) {
		config.Dialect = env.Config.Dialect
		if config.Schema == "" {
			config.Schema = env.Config.Schema
		}
		return sqlinbox.NewStore(ctx, db, config)
	}
	if o.Unmigrated {
		return
	}
	if o.Space == "" {
		require.NoError(t, sqlinbox.Migrate(ctx, db, env.Config))
	}
	var err error
	env.Store, err = env.Open(ctx, env.Config)
	require.NoError(t, err)
}
