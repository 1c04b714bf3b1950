package tests_test

import (
	"context"
	"database/sql"
	"fmt"
	"net"
	"net/url"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib"
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
	ctx := context.Background()
	s := postgresSpace{dsn: o.DSN, schema: o.Space}
	if s.dsn == "" {
		s.dsn = services.PostgreSQL(t)
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
		_, _ = s.db.ExecContext(ctx, "DROP SCHEMA "+s.schema+" CASCADE")
	})
	return s
}

// env fills in what the two drivers share.
func (s postgresSpace) env(config sqlinbox.Config) *tests.Env {
	table := func(suffix string) string { return `"` + s.schema + `"."` + prefixOf(config) + suffix + `"` }
	return &tests.Env{
		Space: s.schema, Config: config, DB: s.db,
		Memory: table(""), Consumers: table("_consumers"), Horizons: table("_horizons"),
		Effects: `"` + s.schema + `".effects`,
	}
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
	ctx := context.Background()
	s := openPostgresSpace(t, o)
	config, err := pgxpool.ParseConfig(s.via)
	require.NoError(t, err)
	config.MaxConns = int32(poolSize(o))
	pool, err := pgxpool.NewWithConfig(ctx, config)
	require.NoError(t, err)
	t.Cleanup(pool.Close)

	o.Config.Schema = s.schema
	env := s.env(o.Config)
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

// pgxSQLHarness is PostgreSQL through database/sql and pgx's stdlib.
func pgxSQLHarness(t testing.TB, o tests.Options) *tests.Env {
	s := openPostgresSpace(t, o)
	db, err := sql.Open("pgx", s.via)
	require.NoError(t, err)
	t.Cleanup(func() { _ = db.Close() })
	o.Config.Schema, o.Config.Dialect = s.schema, sqlinbox.PostgreSQL
	env := s.env(o.Config)
	openSQL(t, env, db, o, "INSERT INTO "+env.Effects+" (name) VALUES ($1)")
	return env
}

// openSQL fills in what every harness on database/sql shares.
func openSQL(t testing.TB, env *tests.Env, db *sql.DB, o tests.Options, insert string) {
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
