package inboxtest_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/watermill-contrib/watermill-inbox/inboxtest"
)

// requireCounts compares without Prepares' siblings that are zero, and shows the log.
func (d database) requireCounts(t *testing.T, roundTrips, statements, prepares int) {
	t.Helper()
	require.Equal(t, inboxtest.Counts{RoundTrips: roundTrips, Statements: statements, Prepares: prepares},
		d.proxy.Counts(), "log:\n%s", strings.Join(d.proxy.Log(), "\n"))
	d.proxy.ResetCounts()
	require.Zero(t, d.proxy.Counts())
	require.Empty(t, d.proxy.Log())
}

func TestCountsOfTransaction(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	conn := d.connect(t, pgx.QueryExecModeCacheStatement)
	d.requireCounts(t, 0, 0, 0) // start-up and authentication

	require.NoError(t, d.transaction(t.Context(), conn, 1))
	require.Equal(t, []string{"begin", d.insert(), "commit"}, d.proxy.Log())
	d.requireCounts(t, 4, 3, 1) // cold: Parse and Describe are a round trip of their own

	for id := range 10 {
		require.NoError(t, d.transaction(t.Context(), conn, 100+id))
		d.requireCounts(t, 3, 3, 0)
	}

	require.NoError(t, conn.Close(t.Context()))
	d.requireCounts(t, 0, 0, 0)
}

func TestCountsOfModes(t *testing.T) {
	t.Parallel()
	for mode, roundTrips := range map[pgx.QueryExecMode]int{
		pgx.QueryExecModeCacheDescribe:  3,
		pgx.QueryExecModeDescribeExec:   4, // describes each time
		pgx.QueryExecModeExec:           3,
		pgx.QueryExecModeSimpleProtocol: 3,
	} {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			d := newDatabase(t)
			conn := d.connect(t, mode)
			require.NoError(t, d.transaction(t.Context(), conn, 1))
			d.proxy.ResetCounts()
			require.NoError(t, d.transaction(t.Context(), conn, 2))
			d.requireCounts(t, roundTrips, 3, 0)
		})
	}
}

func TestCountsOfBatch(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	conn := d.connect(t, pgx.QueryExecModeCacheStatement)
	run := func(id int) {
		var batch pgx.Batch
		batch.Queue("begin")
		batch.Queue(d.insert(), id)
		require.NoError(t, conn.SendBatch(t.Context(), &batch).Close())
		_, err := conn.Exec(t.Context(), "commit")
		require.NoError(t, err)
	}
	run(1)
	d.proxy.ResetCounts()
	run(2)
	require.Equal(t, []string{"begin", d.insert(), "commit"}, d.proxy.Log())
	d.requireCounts(t, 2, 3, 0)

	// A simple query of several statements.
	_, err := conn.PgConn().Exec(t.Context(), "begin; select 1; commit").ReadAll()
	require.NoError(t, err)
	d.requireCounts(t, 1, 3, 0)
	_, err = conn.PgConn().Exec(t.Context(), "").ReadAll()
	require.NoError(t, err)
	d.requireCounts(t, 1, 1, 0)
}

// TestCountsOfLargeBatch sends a batch that no packet holds, whose first results come back
// while it is still being sent.
func TestCountsOfLargeBatch(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	conn := d.connect(t, pgx.QueryExecModeExec)
	var batch pgx.Batch
	for range 200 {
		batch.Queue("SELECT $1::text", strings.Repeat("x", 50_000))
	}
	require.NoError(t, conn.SendBatch(t.Context(), &batch).Close())
	d.requireCounts(t, 1, 200, 0)
}

// TestCountsOfPipeline sends Syncs without waiting for their answers; the latency keeps the
// first answer away from the client until it has sent the last.
func TestCountsOfPipeline(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	conn := d.connect(t, pgx.QueryExecModeExec)
	d.proxy.SetLatency(200 * time.Millisecond)

	pipeline := conn.PgConn().StartPipeline(t.Context())
	for range 3 {
		pipeline.SendQueryParams("SELECT 1", nil, nil, nil, nil)
		require.NoError(t, pipeline.Sync())
	}
	require.NoError(t, pipeline.Close())
	d.requireCounts(t, 1, 3, 0)

	// A Flush is waited for as a Sync is.
	pipeline = conn.PgConn().StartPipeline(t.Context())
	for range 2 {
		pipeline.SendPrepare("", "SELECT 1", nil)
		pipeline.SendFlushRequest()
		require.NoError(t, pipeline.Flush())
		_, err := pipeline.GetResults()
		require.NoError(t, err)
	}
	require.NoError(t, pipeline.Sync())
	require.NoError(t, pipeline.Close())
	d.requireCounts(t, 3, 0, 0)
}

func TestCountsOfErrors(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	conn := d.connect(t, pgx.QueryExecModeCacheStatement)
	require.NoError(t, d.transaction(t.Context(), conn, 1))
	d.proxy.ResetCounts()

	require.Error(t, d.transaction(t.Context(), conn, 1))
	d.requireCounts(t, 3, 3, 0) // begin, insert, rollback

	// pgx has dropped the statement: Close and Sync, then Parse, Describe and Sync, then run.
	require.NoError(t, d.transaction(t.Context(), conn, 2))
	d.requireCounts(t, 5, 3, 1)

	_, err := conn.Exec(t.Context(), "nonsense")
	require.Error(t, err)
	d.requireCounts(t, 1, 1, 0) // without arguments it is a simple query

	_, err = conn.Exec(t.Context(), "nonsense", 1)
	require.Error(t, err)
	d.requireCounts(t, 1, 0, 1) // never executed: the Parse fails

	// In a batch the statements behind the failing one are not executed.
	var batch pgx.Batch
	for _, id := range []int{3, 2, 4} {
		batch.Queue(d.insert(), id)
	}
	require.Error(t, conn.SendBatch(t.Context(), &batch).Close())
	d.requireCounts(t, 1, 2, 0)
	require.NoError(t, conn.Ping(t.Context()))
	require.Equal(t, 2, d.rows(t))
}

// TestCountsOfCopy leaves out the round trips of CopyFrom: pgx does not wait for the server's
// go-ahead, which may come before the first data or after.
func TestCountsOfCopy(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	conn := d.connect(t, pgx.QueryExecModeExec)
	_, err := conn.PgConn().CopyFrom(t.Context(), strings.NewReader("1\n"), "COPY "+d.table+" FROM STDIN")
	require.NoError(t, err)
	_, err = conn.PgConn().CopyFrom(t.Context(), failingReader{}, "COPY "+d.table+" FROM STDIN")
	require.Error(t, err)
	require.Equal(t, 2, d.proxy.Counts().Statements)
	d.proxy.ResetCounts()

	var out bytes.Buffer
	_, err = conn.PgConn().CopyTo(t.Context(), &out, "COPY "+d.table+" TO STDOUT")
	require.NoError(t, err)
	require.Equal(t, "1\n", out.String())
	d.requireCounts(t, 1, 1, 0)
	require.NoError(t, d.transaction(t.Context(), conn, 2))
	d.requireCounts(t, 3, 3, 0)
}

type failingReader struct{}

func (failingReader) Read([]byte) (int, error) { return 0, errors.New("no more") }

func TestCountsOfManyConnections(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	conns := make([]*pgx.Conn, 8)
	for i := range conns {
		conns[i] = d.connect(t, pgx.QueryExecModeCacheStatement)
		require.NoError(t, d.transaction(t.Context(), conns[i], i))
	}
	d.proxy.ResetCounts()
	var wg sync.WaitGroup
	errs := make(chan error, len(conns))
	for i, conn := range conns {
		wg.Go(func() {
			for n := range 25 {
				if err := d.transaction(context.Background(), conn, 1000*(i+1)+n); err != nil {
					errs <- err
				}
			}
		})
	}
	wg.Wait()
	require.Empty(t, errs)
	require.Len(t, d.proxy.Log(), 600)
	d.requireCounts(t, 600, 600, 0)
}

func TestLogIsBounded(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	conn := d.connect(t, pgx.QueryExecModeSimpleProtocol)
	for range 2500 {
		_, err := conn.Exec(t.Context(), "")
		require.NoError(t, err)
	}
	_, err := conn.Exec(t.Context(), "SELECT 1")
	require.NoError(t, err)
	log := d.proxy.Log()
	require.Len(t, log, 1000)
	require.Equal(t, "SELECT 1", log[999])
}
