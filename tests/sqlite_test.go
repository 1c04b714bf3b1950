package tests_test

import (
	"context"
	"database/sql"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite"

	"github.com/watermill-contrib/watermill-inbox/sqlinbox"
	"github.com/watermill-contrib/watermill-inbox/tests"
)

// sqliteHarness is an SQLite file; the space is its path.
func sqliteHarness(t testing.TB, o tests.Options) *tests.Env {
	ctx := context.Background()
	path := o.Space
	if path == "" {
		path = filepath.Join(t.TempDir(), "inbox.db")
	}
	dsn := "file:" + path + "?_txlock=immediate&_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_pragma=synchronous(NORMAL)"
	open := func() *sql.DB {
		db, err := sql.Open("sqlite", dsn)
		require.NoError(t, err)
		t.Cleanup(func() { _ = db.Close() })
		return db
	}
	db, own := open(), open()
	if o.Space == "" {
		_, err := own.ExecContext(ctx, "CREATE TABLE effects (name TEXT NOT NULL) STRICT")
		require.NoError(t, err)
	}
	o.Config.Dialect = sqlinbox.SQLite
	prefix := prefixOf(o.Config)
	env := &tests.Env{
		Space: path, Config: o.Config, DB: own,
		Memory: prefix, Consumers: prefix + "_consumers", Horizons: prefix + "_horizons", Effects: "effects",
	}
	openSQL(t, env, db, o, "INSERT INTO effects (name) VALUES (?)")
	return env
}
