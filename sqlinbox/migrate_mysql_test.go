package sqlinbox_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox"
	"github.com/watermill-contrib/watermill-inbox/tests/services"
)

// What MySQL and MariaDB have of their own: DDL commits by itself, so a migration is no transaction. Up, down and up
// again, by hand and cancelled are the tests of all databases.

// TestMigrateMySQL_CreatesTheDatabase begins with nothing, on a connection that has no default database.
func TestMigrateMySQL_CreatesTheDatabase(t *testing.T) {
	t.Parallel()
	d := openMySQL(t)
	config, err := mysql.ParseDSN(services.MariaDB(t))
	require.NoError(t, err)
	config.DBName = ""
	nowhere := opener(t, "mysql", config.FormatDSN())()
	has := func() (n int) {
		require.NoError(t, d.QueryRowContext(t.Context(), "SELECT count(*) FROM information_schema.schemata WHERE schema_name = ?", d.config.Schema).Scan(&n))
		return n
	}
	require.Equal(t, 0, has())
	_, err = sqlinbox.NewStore(t.Context(), nowhere, d.config)
	require.ErrorIs(t, err, inbox.ErrSchema)
	require.Equal(t, 0, has(), "nothing is made unasked")

	require.NoError(t, sqlinbox.Migrate(t.Context(), nowhere, d.config))
	require.Equal(t, 1, has())
	require.Equal(t, 1, handle(t, nowhere, d.config, "order-42"))

	var bad *inbox.ConfigError
	err = sqlinbox.Migrate(t.Context(), nowhere, sqlinbox.Config{Dialect: sqlinbox.MySQL})
	require.ErrorAs(t, err, &bad, "no default database and no Schema")
	require.Equal(t, "sqlinbox.Config.Schema", bad.Field)
}

// TestMigrateMySQL_AtOnce holds one migration up in the middle, with the lock, until the others are there.
func TestMigrateMySQL_AtOnce(t *testing.T) {
	t.Parallel()
	const others = 7
	d := openMySQL(t)
	inside, goOn := make(chan struct{}), make(chan struct{})
	results := make(chan error, others+1)
	first := d.watched(t, func(n int, _ string) error {
		if n == 4 { // behind the lock, the database and the versions
			close(inside)
			<-goOn
		}
		return nil
	})
	go func() { results <- sqlinbox.Migrate(context.Background(), first, d.config) }()
	<-inside
	for range others {
		db := d.open()
		go func() { results <- sqlinbox.Migrate(context.Background(), db, d.config) }()
	}
	waiting := 0
	require.Eventually(t, func() bool {
		err := d.QueryRowContext(t.Context(), "SELECT count(*) FROM information_schema.processlist WHERE state = 'User lock' AND info LIKE ?",
			"%"+d.lockName(t)+"%").Scan(&waiting)
		return err == nil && waiting == others
	}, 20*time.Second, 5*time.Millisecond, "migrations that wait")
	require.Empty(t, results)
	close(goOn)
	for range others + 1 {
		require.NoError(t, <-results)
	}
	require.NoError(t, sqlinbox.Validate(t.Context(), d.DB, d.config))
	require.Equal(t, 1, handle(t, d.DB, d.config, "order-42"))
	require.False(t, d.locked(t))
}

// TestMigrateMySQL_KilledAtAnyStatement ends the connection of a migration before each of its statements. The next one
// takes it up where it was, and does not wait for the lock of the dead.
func TestMigrateMySQL_KilledAtAnyStatement(t *testing.T) {
	t.Parallel()
	whole := openMySQL(t)
	statements := 0
	require.NoError(t, sqlinbox.Migrate(t.Context(), whole.watched(t, func(n int, _ string) error {
		statements = n
		return nil
	}), whole.config))
	want, versions := whole.structure(t), whole.versions(t)
	require.Greater(t, statements, 2*len(versions))

	errKilled := errors.New("killed")
	for kill := 1; kill <= statements; kill++ {
		t.Run(fmt.Sprint(kill), func(t *testing.T) {
			d := openMySQL(t)
			at := ""
			killed := d.watched(t, func(n int, query string) error {
				if n == kill {
					at = query
					return errKilled
				}
				return nil
			})
			err := sqlinbox.Migrate(t.Context(), killed, d.config)
			if strings.Contains(at, "RELEASE_LOCK") {
				require.NoError(t, err, "everything is done by then")
			} else {
				require.ErrorIs(t, err, errKilled)
				require.ErrorIs(t, sqlinbox.Validate(t.Context(), d.DB, d.config), inbox.ErrSchema, at)
			}
			requireQuickly(t, "the next migration", func() error { return sqlinbox.Migrate(t.Context(), d.DB, d.config) })
			require.Equal(t, versions, d.versions(t))
			require.Equal(t, want, d.structure(t))
			require.False(t, d.locked(t))
			require.Equal(t, 1, handle(t, d.DB, d.config, "order-42"))

			// The way down is taken up again, too.
			down := 0
			killed = d.watched(t, func(int, string) error {
				if down++; down == kill {
					return errKilled
				}
				return nil
			})
			_ = sqlinbox.MigrateDown(t.Context(), killed, d.config, 0)
			requireQuickly(t, "the next migration down", func() error { return sqlinbox.MigrateDown(t.Context(), d.DB, d.config, 0) })
			require.Empty(t, d.structure(t))
			require.False(t, d.locked(t))
		})
	}
}

// lockName is the name of the lock of the migrations, as it is sent.
func (d *database) lockName(t *testing.T) (name string) {
	t.Helper()
	elsewhere := openMySQL(t) // the statements are the same on every database, but for its name
	elsewhere.config = d.config
	stop := errors.New("stop")
	_ = sqlinbox.Migrate(t.Context(), elsewhere.watched(t, func(_ int, query string) error {
		if _, rest, ok := strings.Cut(query, "GET_LOCK('"); ok {
			name, _, _ = strings.Cut(rest, "'")
			return stop
		}
		return nil
	}), d.config)
	require.NotEmpty(t, name)
	return name
}

// locked tells whether somebody holds the lock of the migrations.
func (d *database) locked(t *testing.T) (locked bool) {
	t.Helper()
	require.NoError(t, d.QueryRowContext(t.Context(), "SELECT IS_USED_LOCK(?) IS NOT NULL", d.lockName(t)).Scan(&locked))
	return locked
}

// watched gives a pool that tells a func about every statement that is executed, numbered from 1. When the func gives
// an error, the connection ends instead.
func (d *database) watched(t *testing.T, before func(n int, query string) error) *sql.DB {
	t.Helper()
	config, err := mysql.ParseDSN(services.MariaDB(t))
	require.NoError(t, err)
	connector, err := mysql.NewConnector(config)
	require.NoError(t, err)
	n := 0
	db := sql.OpenDB(watchedConnector{connector, func(query string) error {
		n++
		return before(n, query)
	}})
	db.SetMaxOpenConns(1)
	t.Cleanup(func() { _ = db.Close() })
	return db
}

type watchedConnector struct {
	driver.Connector
	before func(query string) error
}

func (c watchedConnector) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := c.Connector.Connect(ctx)
	return watchedConn{conn, c.before}, err
}

type watchedConn struct {
	driver.Conn
	before func(query string) error
}

func (c watchedConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	return c.Conn.(driver.QueryerContext).QueryContext(ctx, query, args)
}

func (c watchedConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	if err := c.before(query); err != nil {
		_ = c.Close()
		return nil, err
	}
	return c.Conn.(driver.ExecerContext).ExecContext(ctx, query, args)
}
