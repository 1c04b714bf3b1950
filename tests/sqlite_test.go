package tests_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"modernc.org/sqlite"

	"github.com/watermill-contrib/watermill-inbox/sqlinbox"
	"github.com/watermill-contrib/watermill-inbox/tests"
)

// sqliteHarness is an SQLite file; the space is its path.
func sqliteHarness(t testing.TB, o tests.Options) *tests.Env {
	t.Helper()
	ctx := context.Background()
	path := o.Space
	if path == "" {
		path = filepath.Join(t.TempDir(), "inbox.db")
	}
	dsn := "file:" + path + "?_txlock=immediate&_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_pragma=synchronous(NORMAL)&_pragma=foreign_keys(1)"
	open := func(beforeCommit func()) *sql.DB {
		db := sql.OpenDB(sqliteConnector{dsn, beforeCommit})
		t.Cleanup(func() { _ = db.Close() })
		return db
	}
	db, own := open(o.BeforeCommit), open(nil)
	if o.Space == "" {
		_, err := own.ExecContext(ctx, "CREATE TABLE effects (name TEXT NOT NULL) STRICT")
		require.NoError(t, err)
	}
	o.Config.Dialect = sqlinbox.SQLite
	prefix := prefixOf(o.Config)
	env := &tests.Env{
		Space: path, Config: o.Config, DB: own,
		Memory: prefix, Produced: prefix + "_produced", Operations: prefix + "_operations", Consumers: prefix + "_consumers", Horizons: prefix + "_horizons", Migrations: prefix + "_migrations",
		Effects: "effects",
		Locks:   func(ctx context.Context) (int, error) { return sqliteLocks(ctx, own) },
		Cause: func(err error) error {
			var cause *sqlite.Error
			if errors.As(err, &cause) {
				return cause
			}
			return nil
		},
	}
	withOutbox(t, env, o.Space == "")
	openSQL(t, env, db, o, "INSERT INTO effects (name) VALUES (?)")
	return env
}

// sqliteLocks tells whether somebody holds the writer's lock.
func sqliteLocks(ctx context.Context, db *sql.DB) (int, error) {
	conn, err := db.Conn(ctx)
	if err != nil {
		return 0, err
	}
	defer conn.Close() // it only goes back
	_, err = conn.ExecContext(ctx, "PRAGMA busy_timeout = 0; BEGIN IMMEDIATE; ROLLBACK")
	_, timeoutErr := conn.ExecContext(ctx, "PRAGMA busy_timeout = 10000")
	var busy *sqlite.Error
	if errors.As(err, &busy) && busy.Code()&0xff == sqliteBusy {
		return 1, timeoutErr
	}
	return 0, errors.Join(err, timeoutErr)
}

const sqliteBusy = 5

// sqliteConnector opens connections that call a function before each COMMIT of a change.
type sqliteConnector struct {
	dsn          string
	beforeCommit func()
}

func (c sqliteConnector) Driver() driver.Driver {
	d := &sqlite.Driver{}
	if c.beforeCommit != nil {
		d.RegisterConnectionHook(func(conn sqlite.ExecQuerierContext, _ string) error {
			conn.(sqlite.HookRegisterer).RegisterCommitHook(func() int32 { c.beforeCommit(); return 0 })
			return nil
		})
	}
	return d
}

func (c sqliteConnector) Connect(context.Context) (driver.Conn, error) { return c.Driver().Open(c.dsn) }
