package inboxtest_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/watermill-contrib/watermill-inbox/inboxtest"
	"github.com/watermill-contrib/watermill-inbox/tests/services"
)

// mariaDatabase is a table of its own in MariaDB, reached directly and through a proxy.
type mariaDatabase struct {
	proxy       *inboxtest.Proxy
	via, direct *sql.DB
	table       string
}

func newMariaDatabase(t *testing.T, dsn string) mariaDatabase {
	config, err := mysql.ParseDSN(dsn)
	require.NoError(t, err)
	config.Logger = &mysql.NopLogger{}
	d := mariaDatabase{proxy: startProxy(t, config.Addr), table: "inboxtest_" + strings.ToLower(rand.Text())}
	open := func() *sql.DB {
		connector, err := mysql.NewConnector(config.Clone())
		require.NoError(t, err)
		return sql.OpenDB(connector)
	}
	d.direct = open()
	config.Addr = d.proxy.Addr()
	d.via = open()
	_, err = d.direct.ExecContext(t.Context(), "CREATE TABLE "+d.table+" (id int PRIMARY KEY, text LONGTEXT) ENGINE = InnoDB")
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, d.via.Close())
		_, err := d.direct.ExecContext(context.Background(), "DROP TABLE "+d.table)
		require.NoError(t, err)
		require.NoError(t, d.direct.Close())
	})
	return d
}

func (d mariaDatabase) rows(t *testing.T) (n int) {
	require.NoError(t, d.direct.QueryRowContext(t.Context(), "SELECT count(*) FROM "+d.table).Scan(&n))
	return n
}

// transaction inserts a row, by a prepared statement.
func (d mariaDatabase) transaction(t *testing.T, id int, text string) error {
	tx, err := d.via.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	defer tx.Rollback() //nolint:errcheck // after Commit there is nothing to roll back
	_, err = tx.ExecContext(t.Context(), "INSERT INTO "+d.table+" VALUES (?, ?)", id, text)
	require.NoError(t, err)
	return tx.Commit()
}

func TestMySQL_DropCommitReply(t *testing.T) {
	t.Parallel()
	d := newMariaDatabase(t, services.MariaDB(t))
	d.proxy.DropCommitReply(2)
	for id := range 2 {
		require.Error(t, d.transaction(t, id, ""))
		require.Equal(t, id+1, d.rows(t), "the row is there as soon as the client sees the cut")
		require.Equal(t, inboxtest.Counts{DroppedCommits: id + 1}, d.proxy.Counts())
	}
	require.NoError(t, d.transaction(t, 2, ""))
	require.Equal(t, 3, d.rows(t))
	require.Equal(t, 2, d.proxy.Counts().DroppedCommits)
	require.Contains(t, d.proxy.Log(), "COMMIT")
}

func TestMySQL_OnCommit(t *testing.T) {
	t.Parallel()
	d := newMariaDatabase(t, services.MariaDB(t))
	var calls, seen atomic.Int64
	d.proxy.OnCommit(func() {
		calls.Add(1)
		var n int64
		if err := d.direct.QueryRowContext(context.Background(), "SELECT count(*) FROM "+d.table).Scan(&n); err != nil {
			n = -1
		}
		seen.Store(n)
	})
	require.NoError(t, d.transaction(t, 1, ""))
	require.EqualValues(t, 1, calls.Load())
	require.EqualValues(t, 0, seen.Load(), "rows, before the COMMIT reaches the server")
	require.Equal(t, 1, d.rows(t))

	d.proxy.OnCommit(d.proxy.CutAll)
	require.Error(t, d.transaction(t, 2, ""))
	d.proxy.OnCommit(nil)
	require.Equal(t, 1, d.rows(t), "the server never saw it")
	require.NoError(t, d.transaction(t, 2, ""))
}

// TestMySQL_LargeStatements sends statements and results of more than one packet each, whose later packets begin with
// bytes that look like a command.
func TestMySQL_LargeStatements(t *testing.T) {
	t.Parallel()
	server := services.StartMariaDB(t, "max-allowed-packet=64M")
	d := newMariaDatabase(t, server.DSN()+"mysql?interpolateParams=true")
	text := strings.Repeat("\x03COMMIT", 17<<20/7)
	require.NoError(t, d.transaction(t, 1, text))
	var back string
	require.NoError(t, d.via.QueryRowContext(t.Context(), "SELECT text FROM "+d.table).Scan(&back))
	same := text == back // a failure message with both would be long
	require.True(t, same)
	d.proxy.DropCommitReply(1)
	require.Error(t, d.transaction(t, 2, text))
	require.Equal(t, 1, d.proxy.Counts().DroppedCommits)
	require.Equal(t, 2, d.rows(t))
}
