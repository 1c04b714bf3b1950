package tests_test

import (
	"context"
	"database/sql"
	"errors"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox/pgxinbox"
	"github.com/watermill-contrib/watermill-inbox/tests"
	"github.com/watermill-contrib/watermill-inbox/tests/services"
)

// nowhere is the address of no server: what is refused before the database is asked does not need one.
const nowhere = "postgres://postgres@127.0.0.1:1/postgres?sslmode=disable"

func openNowhere(t *testing.T) (*pgxpool.Pool, *sql.DB) {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), nowhere)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	db, err := sql.Open("pgx", nowhere)
	require.NoError(t, err)
	t.Cleanup(func() { _ = db.Close() })
	return pool, db
}

func requireConfigError(t *testing.T, err error, field string, says ...string) {
	t.Helper()
	var bad *inbox.ConfigError
	require.ErrorAs(t, err, &bad)
	require.Equal(t, field, bad.Field)
	for _, word := range append(says, field) {
		require.ErrorContains(t, err, word)
	}
}

func TestInput_NilStores(t *testing.T) {
	for name, store := range map[string]inbox.Store{
		"nil":      nil,
		"sqlinbox": (*sqlinbox.Store)(nil),
		"pgxinbox": (*pgxinbox.Store)(nil),
	} {
		t.Run(name, func(t *testing.T) {
			in, err := inbox.New(store, inbox.Config{})
			require.Nil(t, in)
			requireConfigError(t, err, "store", "NewStore")
		})
	}
}

func TestInput_NilPools(t *testing.T) {
	ctx := t.Context()
	config := sqlinbox.Config{Dialect: sqlinbox.PostgreSQL}
	_, err := sqlinbox.NewStore(ctx, nil, config)
	requireConfigError(t, err, "db", "sql.Open")
	requireConfigError(t, sqlinbox.Migrate(ctx, nil, config), "db")
	requireConfigError(t, sqlinbox.Validate(ctx, nil, config), "db")
	requireConfigError(t, sqlinbox.MigrateDown(ctx, nil, config, 0), "db")

	_, err = pgxinbox.NewStore(ctx, nil, pgxinbox.Config{})
	requireConfigError(t, err, "pool", "pgxpool.New")
	requireConfigError(t, pgxinbox.Migrate(ctx, nil, pgxinbox.Config{}), "pool")
	requireConfigError(t, pgxinbox.Validate(ctx, nil, pgxinbox.Config{}), "pool")
}

func TestInput_BadNames(t *testing.T) {
	pool, db := openNowhere(t)
	ctx := t.Context()
	for _, name := range []string{
		`x"; DROP TABLE effects; --`, `x'; --`, "a b", " a", "a ", "a.b", `a"`, "a\n", "a\x00", "1a", "-", "é", "ö", "a\\b",
		strings.Repeat("a", 41),
	} {
		for field, config := range map[string]sqlinbox.Config{"Schema": {Schema: name}, "TablePrefix": {TablePrefix: name}} {
			_, err := pgxinbox.NewStore(ctx, pool, config)
			requireConfigError(t, err, "sqlinbox.Config."+field, "letter or underscore")
			requireConfigError(t, pgxinbox.Migrate(ctx, pool, config), "sqlinbox.Config."+field)

			for _, dialect := range []sqlinbox.Dialect{sqlinbox.PostgreSQL, sqlinbox.SQLite} {
				config.Dialect = dialect
				_, err = sqlinbox.NewStore(ctx, db, config)
				requireConfigError(t, err, "sqlinbox.Config."+field, "letter or underscore")
				requireConfigError(t, sqlinbox.Migrate(ctx, db, config), "sqlinbox.Config."+field)
				_, _, err = sqlinbox.MigrationSQL(config)
				requireConfigError(t, err, "sqlinbox.Config."+field)
			}
		}
	}
}

func TestInput_BadDialects(t *testing.T) {
	pool, db := openNowhere(t)
	for _, dialect := range []sqlinbox.Dialect{"", "oracle"} {
		_, err := sqlinbox.NewStore(t.Context(), db, sqlinbox.Config{Dialect: dialect})
		requireConfigError(t, err, "sqlinbox.Config.Dialect")
	}
	for _, dialect := range []sqlinbox.Dialect{sqlinbox.SQLite, "oracle"} {
		_, err := pgxinbox.NewStore(t.Context(), pool, pgxinbox.Config{Dialect: dialect})
		requireConfigError(t, err, "pgxinbox.Config.Dialect")
	}
	_, err := sqlinbox.NewStore(t.Context(), db, sqlinbox.Config{Dialect: sqlinbox.SQLite, Schema: "public"})
	requireConfigError(t, err, "sqlinbox.Config.Schema", "SQLite has no schemas")
}

// TestInput_OddNames uses every name that the rule allows: they are quoted everywhere.
func TestInput_OddNames(t *testing.T) {
	for _, c := range columns() {
		t.Run(c.features.Name, func(t *testing.T) {
			for _, name := range []string{"select", "Order", "_", "a1", strings.Repeat("w", 40)} {
				config := sqlinbox.Config{TablePrefix: name}
				env := c.harness(t, tests.Options{Config: config})
				requireWorks(t, env, env.Store)
				if c.features.Server {
					// A schema of that kind, and of the greatest length, that no other run has.
					config.Schema, config.InitializeSchema = name[:min(len(name), 7)]+"_"+env.Space[len(env.Space)-32:], true
					t.Cleanup(func() {
						drop := `DROP SCHEMA "` + config.Schema + `" CASCADE`
						if env.Config.Dialect == sqlinbox.MySQL {
							drop = "DROP SCHEMA `" + config.Schema + "`"
						}
						_, _ = env.DB.ExecContext(context.Background(), drop)
					})
					store, err := env.Open(t.Context(), config)
					require.NoError(t, err)
					requireWorks(t, env, store)
				}
			}
		})
	}
}

// requireWorks handles a message and its copy.
func requireWorks(t *testing.T, env *tests.Env, store inbox.Store) {
	t.Helper()
	in, err := inbox.New(store, inbox.Config{Consumer: func(*message.Message) string { return "charge" }})
	require.NoError(t, err)
	msg := message.NewMessage(inbox.NewUUID(), nil)
	for range 2 {
		_, err = in.Middleware(func(msg *message.Message) ([]*message.Message, error) {
			return nil, env.Write(msg.Context(), msg.UUID)
		})(msg.Copy())
		require.NoError(t, err)
	}
	require.Equal(t, 1, env.Count(t, msg.UUID))
}

// TestInput_SearchPath takes the schema from a search_path that leads to a bad name, or nowhere.
func TestInput_SearchPath(t *testing.T) {
	dsn := services.PostgreSQL(t)
	admin, err := sql.Open("pgx", dsn)
	require.NoError(t, err)
	defer admin.Close()
	odd := "odd-" + inbox.NewUUID()
	_, err = admin.ExecContext(t.Context(), `CREATE SCHEMA "`+odd+`"`)
	require.NoError(t, err)
	defer admin.ExecContext(context.Background(), `DROP SCHEMA "`+odd+`"`) //nolint:errcheck // the end of the test

	for path, says := range map[string]string{`"` + odd + `"`: odd, "no_such_schema": "search_path"} {
		u, err := url.Parse(dsn)
		require.NoError(t, err)
		query := u.Query()
		query.Set("search_path", path)
		u.RawQuery = query.Encode()

		pool, err := pgxpool.New(t.Context(), u.String())
		require.NoError(t, err)
		defer pool.Close()
		_, err = pgxinbox.NewStore(t.Context(), pool, pgxinbox.Config{})
		requireConfigError(t, err, "pgxinbox.Config.Schema", says, "search_path")
		require.NotContains(t, err.Error(), "0xc0", "an address instead of the value")

		db, err := sql.Open("pgx", u.String())
		require.NoError(t, err)
		defer db.Close()
		_, err = sqlinbox.NewStore(t.Context(), db, sqlinbox.Config{Dialect: sqlinbox.PostgreSQL})
		requireConfigError(t, err, "sqlinbox.Config.Schema", says, "search_path")
	}
}

func TestInput_UnreachableServer(t *testing.T) {
	pool, db := openNowhere(t)
	for _, schema := range []string{"", "public"} {
		_, err := pgxinbox.NewStore(t.Context(), pool, pgxinbox.Config{Schema: schema})
		require.ErrorContains(t, err, "inbox: ")
		require.ErrorContains(t, err, "127.0.0.1")
		_, err = sqlinbox.NewStore(t.Context(), db, sqlinbox.Config{Dialect: sqlinbox.PostgreSQL, Schema: schema})
		require.ErrorContains(t, err, "inbox: ")
		require.ErrorContains(t, err, "127.0.0.1")
	}
}

// TestI3_ReadOnlySettings is a role, or a database, that is read-only by its settings.
func TestI3_ReadOnlySettings(t *testing.T) {
	t.Run("pgx", func(t *testing.T) { testReadOnlySettings(t, pgxHarness) })
	t.Run("pgx-sql", func(t *testing.T) { testReadOnlySettings(t, pgxSQLHarness) })
}

func testReadOnlySettings(t *testing.T, harness tests.Harness) {
	env := harness(t, tests.Options{})
	u, err := url.Parse(env.DSN)
	require.NoError(t, err)
	query := u.Query()
	query.Set("default_transaction_read_only", "on")
	u.RawQuery = query.Encode()
	readOnly := harness(t, tests.Options{Space: env.Space, DSN: u.String(), Unmigrated: true})
	for _, initialize := range []bool{false, true} {
		_, err = readOnly.Open(t.Context(), sqlinbox.Config{InitializeSchema: initialize})
		require.ErrorIs(t, err, inbox.ErrReadOnly)
	}
	_, err = readOnly.Open(t.Context(), sqlinbox.Config{})
	require.ErrorContains(t, err, "default_transaction_read_only")
	require.Equal(t, 0, readOnly.InUse())
}

// TestI3_Standby turns the server under a running store into a standby, and promotes it. pg_basebackup is not needed: a
// server that finds standby.signal waits for write-ahead log that never comes, and serves reads meanwhile.
func TestI3_Standby(t *testing.T) {
	t.Run("pgx", func(t *testing.T) { testStandby(t, pgxHarness) })
	t.Run("pgx-sql", func(t *testing.T) { testStandby(t, pgxSQLHarness) })
}

func testStandby(t *testing.T, harness tests.Harness) {
	server := services.StartPostgreSQL(t)
	env := harness(t, tests.Options{DSN: server.DSN()})
	ctx := t.Context()
	requireWorks(t, env, env.Store)
	serializable, err := env.Open(ctx, sqlinbox.Config{Isolation: sql.LevelSerializable})
	require.NoError(t, err)
	requireWorks(t, env, serializable)

	var dir string
	require.NoError(t, env.DB.QueryRowContext(ctx, "SHOW data_directory").Scan(&dir))
	server.Stop()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "standby.signal"), nil, 0o644))
	server.Start()

	msg := message.NewMessage(inbox.NewUUID(), nil)
	deliver := func(store inbox.Store, consumer string, handler message.HandlerFunc) error {
		in, err := inbox.New(store, inbox.Config{Consumer: func(*message.Message) string { return consumer }})
		require.NoError(t, err)
		_, err = in.Middleware(handler)(msg.Copy())
		return err
	}
	for name, store := range map[string]inbox.Store{"read committed": env.Store, "serializable": serializable} {
		for _, consumer := range []string{"charge", "stranger"} {
			err := deliver(store, consumer, func(*message.Message) ([]*message.Message, error) {
				t.Error("the handler was called")
				return nil, nil
			})
			if name != "serializable" || !errors.Is(err, inbox.ErrUnavailable) { // a standby refuses the level as well
				require.ErrorIs(t, err, inbox.ErrReadOnly, "%s, consumer %s", name, consumer)
			}
			require.True(t, inbox.IsTransient(err))
			require.Error(t, env.Cause(err), "the database's own error")
		}
	}
	_, err = env.Open(ctx, sqlinbox.Config{})
	require.ErrorIs(t, err, inbox.ErrReadOnly)
	require.ErrorContains(t, err, "standby")
	_, err = env.Open(ctx, sqlinbox.Config{InitializeSchema: true})
	require.ErrorIs(t, err, inbox.ErrReadOnly)

	fresh, err := sql.Open("pgx", server.DSN()) // without connections that the restart has cut
	require.NoError(t, err)
	defer fresh.Close()
	_, err = fresh.ExecContext(ctx, "SELECT pg_promote()")
	require.NoError(t, err)
	for _, store := range []inbox.Store{env.Store, serializable} {
		require.NoError(t, deliver(store, "charge", func(msg *message.Message) ([]*message.Message, error) {
			return nil, env.Write(msg.Context(), "pay")
		}))
	}
	var effects int
	require.NoError(t, fresh.QueryRowContext(ctx, "SELECT count(*) FROM "+env.Effects+" WHERE name = 'pay'").Scan(&effects))
	require.Equal(t, 1, effects)
}

// TestI3_ReadOnlyFile opens an SQLite file in the ways that allow no writing.
func TestI3_ReadOnlyFile(t *testing.T) {
	t.Run("sqlite", func(t *testing.T) {
		env := sqliteHarness(t, tests.Options{})
		requireWorks(t, env, env.Store)
		for _, how := range []string{"mode=ro", "_pragma=query_only(1)", "mode=ro&_txlock=immediate", "_pragma=query_only(1)&_txlock=immediate"} {
			db, err := sql.Open("sqlite", "file:"+env.Space+"?"+how+"&_pragma=busy_timeout(10000)")
			require.NoError(t, err)
			defer db.Close()
			for _, initialize := range []bool{false, true} {
				_, err = sqlinbox.NewStore(t.Context(), db, sqlinbox.Config{Dialect: sqlinbox.SQLite, InitializeSchema: initialize})
				require.ErrorIs(t, err, inbox.ErrReadOnly, how)
				require.Error(t, env.Cause(err), how)
			}
			require.Equal(t, 0, db.Stats().InUse)
		}

		db, err := sql.Open("sqlite", "file:"+filepath.Join(t.TempDir(), "none", "inbox.db"))
		require.NoError(t, err)
		defer db.Close()
		_, err = sqlinbox.NewStore(t.Context(), db, sqlinbox.Config{Dialect: sqlinbox.SQLite})
		require.Error(t, err)
		require.NotErrorIs(t, err, inbox.ErrSchema, "there is no database")
	})
}
