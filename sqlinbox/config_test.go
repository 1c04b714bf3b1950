package sqlinbox_test

import (
	"database/sql"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite" // the driver of the tests

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox"
)

func TestConfigValidate(t *testing.T) {
	t.Parallel()
	const postgres, mysql, sqlite = sqlinbox.PostgreSQL, sqlinbox.MySQL, sqlinbox.SQLite
	type config = sqlinbox.Config
	for _, tt := range []struct {
		name   string
		config config
		field  string // empty: valid
	}{
		{"PostgreSQL", config{Dialect: postgres}, ""},
		{"MySQL", config{Dialect: mysql}, ""},
		{"SQLite", config{Dialect: sqlite}, ""},
		{"no dialect", config{}, "Dialect"},
		{"unknown dialect", config{Dialect: "oracle"}, "Dialect"},
		{"dialect in another case", config{Dialect: "PostgreSQL"}, "Dialect"},

		{"schema", config{Dialect: postgres, Schema: "billing"}, ""},
		{"longest schema", config{Dialect: postgres, Schema: strings.Repeat("x", 40)}, ""},
		{"schema too long", config{Dialect: postgres, Schema: strings.Repeat("x", 41)}, "Schema"},
		{"qualified schema", config{Dialect: postgres, Schema: "a.b"}, "Schema"},
		{"quoted schema", config{Dialect: postgres, Schema: `"a"`}, "Schema"},
		{"schema with a line", config{Dialect: postgres, Schema: "a\n"}, "Schema"},
		{"schema on SQLite", config{Dialect: sqlite, Schema: "main"}, "Schema"},
		{"schema on MySQL", config{Dialect: mysql, Schema: "billing"}, ""},

		{"prefix", config{Dialect: postgres, TablePrefix: "Order_"}, ""},
		{"prefix that ends the statement", config{Dialect: postgres, TablePrefix: `x"; DROP TABLE y; --`}, "TablePrefix"},
		{"prefix that begins with a digit", config{Dialect: sqlite, TablePrefix: "1a"}, "TablePrefix"},
		{"prefix beyond ASCII", config{Dialect: sqlite, TablePrefix: "größe"}, "TablePrefix"},
		{"prefix of a blank", config{Dialect: sqlite, TablePrefix: " "}, "TablePrefix"},

		{"read committed", config{Dialect: postgres, Isolation: sql.LevelReadCommitted}, ""},
		{"repeatable read", config{Dialect: postgres, Isolation: sql.LevelRepeatableRead}, ""},
		{"serializable", config{Dialect: postgres, Isolation: sql.LevelSerializable}, ""},
		{"read uncommitted", config{Dialect: postgres, Isolation: sql.LevelReadUncommitted}, "Isolation"},
		{"snapshot", config{Dialect: postgres, Isolation: sql.LevelSnapshot}, "Isolation"},
		{"no level at all", config{Dialect: postgres, Isolation: 99}, "Isolation"},
		{"serializable on SQLite", config{Dialect: sqlite, Isolation: sql.LevelSerializable}, ""},
		{"read committed on SQLite", config{Dialect: sqlite, Isolation: sql.LevelReadCommitted}, "Isolation"},

		{"no wait", config{Dialect: postgres, InFlightWait: -1}, ""},
		{"negative wait", config{Dialect: postgres, InFlightWait: -time.Second}, "InFlightWait"},
		{"no retries", config{Dialect: postgres, TxRetries: -1}, ""},
		{"negative retries", config{Dialect: postgres, TxRetries: -2}, "TxRetries"},
		{"idle timeout", config{Dialect: postgres, IdleTimeout: 90 * time.Second}, ""},
		{"longest idle timeout", config{Dialect: postgres, IdleTimeout: math.MaxInt32 * time.Millisecond}, ""},
		{"negative idle timeout", config{Dialect: postgres, IdleTimeout: -1}, "IdleTimeout"},
		{"idle timeout below a millisecond", config{Dialect: postgres, IdleTimeout: time.Microsecond}, "IdleTimeout"},
		{"commit timeout", config{Dialect: postgres, CommitTimeout: time.Second}, ""},
		{"no commit timeout", config{Dialect: postgres, CommitTimeout: -1}, "CommitTimeout"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			before := tt.config
			err := tt.config.Validate()
			require.Equal(t, before, tt.config)
			if tt.field == "" {
				require.NoError(t, err)
				return
			}
			requireBad(t, err, tt.field)
		})
	}
}

// The server takes milliseconds in 32 bits. A longer time would be refused at every message instead of here.
func TestConfigValidateIdleTimeoutThatTheServerRefuses(t *testing.T) {
	t.Parallel()
	config := sqlinbox.Config{Dialect: sqlinbox.PostgreSQL, IdleTimeout: (math.MaxInt32 + 1) * time.Millisecond}
	requireBad(t, config.Validate(), "IdleTimeout")
}

// Every entry checks the config before it touches the database.
func TestABadConfigIsFoundFirst(t *testing.T) {
	t.Parallel()
	db, err := sql.Open("sqlite", "file:/no/such/folder/inbox.db")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	bad := sqlinbox.Config{Dialect: sqlinbox.SQLite, TablePrefix: "a b"}

	store, err := sqlinbox.NewStore(t.Context(), db, bad)
	require.Nil(t, store)
	requireBad(t, err, "TablePrefix")
	requireBad(t, sqlinbox.Migrate(t.Context(), db, bad), "TablePrefix")
	requireBad(t, sqlinbox.MigrateDown(t.Context(), db, bad, 0), "TablePrefix")
	requireBad(t, sqlinbox.Validate(t.Context(), db, bad), "TablePrefix")
	_, _, err = sqlinbox.MigrationSQL(bad)
	requireBad(t, err, "TablePrefix")
}

func TestANilDBIsRefused(t *testing.T) {
	t.Parallel()
	config := sqlinbox.Config{Dialect: sqlinbox.SQLite}
	store, err := sqlinbox.NewStore(t.Context(), nil, config)
	require.Nil(t, store)
	for _, err := range []error{
		err,
		sqlinbox.Migrate(t.Context(), nil, config),
		sqlinbox.MigrateDown(t.Context(), nil, config, 0),
		sqlinbox.Validate(t.Context(), nil, config),
	} {
		var bad *inbox.ConfigError
		require.ErrorAs(t, err, &bad)
		require.Equal(t, "db", bad.Field)
	}
}

func TestMigrateDownRefusesANegativeVersion(t *testing.T) {
	t.Parallel()
	err := sqlinbox.MigrateDown(t.Context(), nil, sqlinbox.Config{Dialect: sqlinbox.SQLite}, -1)
	var bad *inbox.ConfigError
	require.ErrorAs(t, err, &bad)
	require.Equal(t, "version", bad.Field)
}

func TestMigrationSQL(t *testing.T) {
	t.Parallel()
	for _, dialect := range []sqlinbox.Dialect{sqlinbox.PostgreSQL, sqlinbox.MySQL, sqlinbox.SQLite} {
		t.Run(string(dialect), func(t *testing.T) {
			t.Parallel()
			up, down, err := sqlinbox.MigrationSQL(sqlinbox.Config{Dialect: dialect, TablePrefix: "my_inbox"})
			require.NoError(t, err)
			for _, script := range []string{up, down} {
				require.NotRegexp(t, `[{}]`, script)
				require.True(t, strings.HasSuffix(script, ";\n"))
				require.Contains(t, script, "my_inbox_migrations")
				require.NotContains(t, script, "SCHEMA", "none was named")
			}
			require.Equal(t, strings.Count(up, "CREATE TABLE"), strings.Count(down, "DROP TABLE"))
		})
	}
	up, _, err := sqlinbox.MigrationSQL(sqlinbox.Config{Dialect: sqlinbox.PostgreSQL, Schema: "billing"})
	require.NoError(t, err)
	require.True(t, strings.HasPrefix(up, `CREATE SCHEMA IF NOT EXISTS "billing";`), up)
	require.Contains(t, up, `CREATE TABLE "billing"."watermill_inbox" (`)
}

// The scripts are what Migrate does: a store finds nothing missing, and nothing is left afterwards.
func TestMigrationSQLIsWhatAStoreNeeds(t *testing.T) {
	t.Parallel()
	db, err := sql.Open("sqlite", "file::memory:")
	require.NoError(t, err)
	db.SetMaxOpenConns(1)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	config := sqlinbox.Config{Dialect: sqlinbox.SQLite, TablePrefix: "my_inbox"}
	up, down, err := sqlinbox.MigrationSQL(config)
	require.NoError(t, err)

	_, err = sqlinbox.NewStore(t.Context(), db, config)
	require.ErrorIs(t, err, inbox.ErrSchema)
	require.ErrorContains(t, err, "run sqlinbox.Migrate or set Config.InitializeSchema")

	_, err = db.ExecContext(t.Context(), up)
	require.NoError(t, err)
	_, err = sqlinbox.NewStore(t.Context(), db, config)
	require.NoError(t, err)

	_, err = db.ExecContext(t.Context(), down)
	require.NoError(t, err)
	var tables int
	require.NoError(t, db.QueryRowContext(t.Context(), "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%'").Scan(&tables))
	require.Zero(t, tables)
}

func requireBad(t *testing.T, err error, field string) {
	t.Helper()
	var bad *inbox.ConfigError
	require.ErrorAs(t, err, &bad)
	require.Equal(t, "sqlinbox.Config."+field, bad.Field)
	require.NotEmpty(t, bad.Reason)
	require.ErrorContains(t, err, bad.Field)
}
