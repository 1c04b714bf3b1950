package inboxtest_test

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"database/sql"
	"errors"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	"github.com/watermill-contrib/watermill-inbox/inboxtest"
	"github.com/watermill-contrib/watermill-inbox/tests/services"
)

// database is a table of its own in PostgreSQL, reached directly and through a proxy.
type database struct {
	proxy  *inboxtest.Proxy
	dsn    string // through the proxy
	direct *pgx.Conn
	table  string
}

func newDatabase(t *testing.T) database {
	dsn := services.PostgreSQL(t)
	u, err := url.Parse(dsn)
	require.NoError(t, err)
	d := database{
		proxy: startProxy(t, u.Host),
		table: "inboxtest_" + strings.ToLower(rand.Text()),
	}
	u.Host = d.proxy.Addr()
	d.dsn = u.String()

	d.direct, err = pgx.Connect(t.Context(), dsn)
	require.NoError(t, err)
	_, err = d.direct.Exec(t.Context(), "CREATE TABLE "+d.table+" (id int PRIMARY KEY)")
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx := context.Background()
		_, err := d.direct.Exec(ctx, "DROP TABLE "+d.table)
		require.NoError(t, err)
		require.NoError(t, d.direct.Close(ctx))
	})
	return d
}

// connect returns a connection through the proxy.
func (d database) connect(t *testing.T, mode pgx.QueryExecMode) *pgx.Conn {
	config, err := pgx.ParseConfig(d.dsn)
	require.NoError(t, err)
	config.DefaultQueryExecMode = mode
	conn, err := pgx.ConnectConfig(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func (d database) rows(t *testing.T) (n int) {
	require.NoError(t, d.direct.QueryRow(t.Context(), "SELECT count(*) FROM "+d.table).Scan(&n))
	return n
}

// locks counts the transactions that write to the table.
func (d database) locks(t *testing.T) (n int) {
	const query = "SELECT count(*) FROM pg_locks WHERE relation = $1::text::regclass AND mode = 'RowExclusiveLock'"
	require.NoError(t, d.direct.QueryRow(t.Context(), query, d.table).Scan(&n))
	return n
}

func (d database) insert() string {
	return "INSERT INTO " + d.table + " (id) VALUES ($1)"
}

// transaction runs one INSERT in a transaction.
func (d database) transaction(ctx context.Context, conn *pgx.Conn, id int) error {
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, d.insert(), id)
		return err
	})
}

func modes() []pgx.QueryExecMode {
	return []pgx.QueryExecMode{
		pgx.QueryExecModeCacheStatement,
		pgx.QueryExecModeCacheDescribe,
		pgx.QueryExecModeDescribeExec,
		pgx.QueryExecModeExec,
		pgx.QueryExecModeSimpleProtocol,
	}
}

func TestDropCommitReply(t *testing.T) {
	t.Parallel()
	for _, mode := range modes() {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			d := newDatabase(t)
			d.proxy.SetLatency(time.Millisecond)
			d.proxy.DropCommitReply(2)
			for id := range 2 {
				conn := d.connect(t, mode)
				require.Error(t, d.transaction(t.Context(), conn, id))
				require.True(t, conn.IsClosed())
				require.Equal(t, id+1, d.rows(t), "the row is there as soon as the client sees the cut")
				require.Equal(t, id+1, d.proxy.Counts().DroppedCommits)
			}
			require.NoError(t, d.transaction(t.Context(), d.connect(t, mode), 2))
			require.Equal(t, 3, d.rows(t))
			require.Equal(t, 2, d.proxy.Counts().DroppedCommits)
		})
	}
}

func TestDropCommitReplyOnlyOfCommits(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	conn := d.connect(t, pgx.QueryExecModeCacheStatement)
	d.proxy.DropCommitReply(1)

	// A rollback, and a COMMIT that the server answers with ROLLBACK.
	_, err := conn.Exec(t.Context(), "BEGIN")
	require.NoError(t, err)
	_, err = conn.Exec(t.Context(), "ROLLBACK")
	require.NoError(t, err)
	tx, err := conn.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), "SELECT 1/0")
	require.Error(t, err)
	require.ErrorIs(t, tx.Commit(t.Context()), pgx.ErrTxCommitRollback)
	require.False(t, conn.IsClosed())

	d.proxy.DropCommitReply(0)
	require.NoError(t, d.transaction(t.Context(), conn, 1))
	require.Zero(t, d.proxy.Counts().DroppedCommits)
}

// TestDropCommitReplyInBatch drops the reply where the last write and the COMMIT travel
// together, in both protocols.
func TestDropCommitReplyInBatch(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	d.proxy.DropCommitReply(2)

	conn := d.connect(t, pgx.QueryExecModeCacheStatement)
	var batch pgx.Batch
	batch.Queue("BEGIN")
	batch.Queue(d.insert(), 1)
	batch.Queue("COMMIT")
	require.Error(t, conn.SendBatch(t.Context(), &batch).Close())
	require.Equal(t, 1, d.rows(t))

	conn = d.connect(t, pgx.QueryExecModeSimpleProtocol)
	_, err := conn.Exec(t.Context(), "BEGIN; INSERT INTO "+d.table+" VALUES (2); COMMIT")
	require.Error(t, err)
	require.Equal(t, 2, d.rows(t))
}

func TestDropCommitReplyDatabaseSQL(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	config, err := pgx.ParseConfig(d.dsn)
	require.NoError(t, err)
	db := stdlib.OpenDB(*config)
	defer db.Close()

	d.proxy.DropCommitReply(1)
	tx, err := db.BeginTx(t.Context(), &sql.TxOptions{})
	require.NoError(t, err)
	_, err = tx.ExecContext(t.Context(), d.insert(), 1)
	require.NoError(t, err)
	require.Error(t, tx.Commit())
	require.Equal(t, 1, d.rows(t))
}

func TestOnCommit(t *testing.T) {
	t.Parallel()
	for _, mode := range modes() {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			d := newDatabase(t)
			conn := d.connect(t, mode)
			rows := make(chan int, 10)
			d.proxy.OnCommit(func() { rows <- d.rows(t) })
			require.NoError(t, d.transaction(t.Context(), conn, 1))
			require.Len(t, rows, 1)
			require.Zero(t, <-rows, "the COMMIT was forwarded before")

			d.proxy.OnCommit(d.proxy.CutAll)
			require.Error(t, d.transaction(t.Context(), conn, 2))
			require.Equal(t, 1, d.rows(t))

			d.proxy.OnCommit(nil)
			require.NoError(t, d.transaction(t.Context(), d.connect(t, mode), 3))
			require.Equal(t, 2, d.rows(t))
		})
	}
}

// TestOnCommitInBatch holds a COMMIT while what the client sent in front of it is executed.
func TestOnCommitInBatch(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	conn := d.connect(t, pgx.QueryExecModeCacheStatement)
	var locks atomic.Int64
	d.proxy.OnCommit(func() {
		for deadline := time.Now().Add(10 * time.Second); locks.Load() == 0 && time.Now().Before(deadline); {
			locks.Store(int64(d.locks(t)))
		}
	})
	var batch pgx.Batch
	batch.Queue("BEGIN")
	batch.Queue(d.insert(), 1)
	batch.Queue("COMMIT")
	require.NoError(t, conn.SendBatch(t.Context(), &batch).Close())
	require.EqualValues(t, 1, locks.Load(), "the INSERT in front of the COMMIT was not executed")
	require.Equal(t, 1, d.rows(t))
}

// TestStopForwardingOnCommit cuts the network under a transaction: the server does not see its
// client die until it is told, or its own timeout ends the session.
func TestStopForwardingOnCommit(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	conn := d.connect(t, pgx.QueryExecModeCacheStatement)
	pid := conn.PgConn().PID()
	ctx, giveUp := context.WithCancel(t.Context())
	d.proxy.OnCommit(func() {
		d.proxy.StopForwarding()
		giveUp()
	})
	require.ErrorIs(t, d.transaction(ctx, conn, 1), context.Canceled)
	require.True(t, conn.IsClosed())

	state := func() string {
		var state string
		err := d.direct.QueryRow(t.Context(), "SELECT state FROM pg_stat_activity WHERE pid = $1", pid).Scan(&state)
		if errors.Is(err, pgx.ErrNoRows) {
			return "gone"
		}
		require.NoError(t, err)
		return state
	}
	require.Equal(t, "idle in transaction", state())
	require.Zero(t, d.rows(t))
	d.proxy.OnCommit(nil)
	d.proxy.Resume()
	require.Eventually(t, func() bool { return state() == "gone" }, 10*time.Second, time.Millisecond)
	require.Equal(t, 1, d.rows(t), "the COMMIT that was under way arrives, as in TCP")
	<-conn.PgConn().CleanupDone()
}

// TestEncryption asks for TLS, which the proxy denies whatever the server can do.
func TestEncryption(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	connect := func(mode string) (*pgx.Conn, error) {
		return pgx.Connect(t.Context(), strings.Replace(d.dsn, "sslmode=disable", "sslmode="+mode, 1))
	}
	if !strings.Contains(d.dsn, "sslmode=disable") {
		t.Skip("the server's address does not name an sslmode")
	}
	conn, err := connect("prefer")
	require.NoError(t, err)
	defer conn.Close(context.Background())
	require.NoError(t, d.transaction(t.Context(), conn, 1))
	require.Equal(t, 4, d.proxy.Counts().Statements+d.proxy.Counts().Prepares)

	_, err = connect("require")
	require.ErrorContains(t, err, "refused TLS")

	// TLS from the first byte is not PostgreSQL's start-up; the server is asked, and hangs up.
	_, err = tls.Dial("tcp", d.proxy.Addr(), &tls.Config{InsecureSkipVerify: true})
	require.Error(t, err)
}

func TestCancelRequest(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	conn := d.connect(t, pgx.QueryExecModeCacheStatement)
	d.proxy.OnCommit(nil)
	failed := make(chan error, 1)
	go func() {
		_, err := conn.Exec(t.Context(), "SELECT pg_sleep(60)")
		failed <- err
	}()
	require.Eventually(t, func() bool {
		var running bool
		err := d.direct.QueryRow(t.Context(), "SELECT state = 'active' AND wait_event = 'PgSleep' FROM pg_stat_activity WHERE pid = $1", conn.PgConn().PID()).Scan(&running)
		return err == nil && running
	}, 10*time.Second, time.Millisecond)
	require.NoError(t, conn.PgConn().CancelRequest(t.Context()))
	var pgErr *pgconn.PgError
	require.ErrorAs(t, <-failed, &pgErr)
	require.Equal(t, "57014", pgErr.Code)
}
