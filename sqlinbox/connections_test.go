package sqlinbox

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	"github.com/watermill-contrib/watermill-inbox/tests/services"
)

// metter counts how often the connections met a new one.
type metter struct {
	connections
	n int
}

func newMetter() *metter {
	m := &metter{}
	m.met = func() { m.n++ }
	return m
}

// use uses one of db's connections, and gives it back unless it is to be kept.
func (m *metter) use(t *testing.T, db *sql.DB) *sql.Conn {
	t.Helper()
	conn, err := db.Conn(t.Context())
	require.NoError(t, err)
	m.connections.use(conn)
	return conn
}

func (m *metter) useBriefly(t *testing.T, db *sql.DB) {
	t.Helper()
	require.NoError(t, m.use(t, db).Close())
}

// openFake opens a pool of connections that can do nothing.
func openFake(t *testing.T, connect func() driver.Conn) *sql.DB {
	t.Helper()
	db := sql.OpenDB(fakeConnector(connect))
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return db
}

type fakeConnector func() driver.Conn

func (c fakeConnector) Connect(context.Context) (driver.Conn, error) { return c(), nil }
func (c fakeConnector) Driver() driver.Driver                        { return nil }

type fakeConn struct{ _ byte }

func (*fakeConn) Prepare(string) (driver.Stmt, error) { return nil, errors.New("nothing") }
func (*fakeConn) Close() error                        { return nil }
func (*fakeConn) Begin() (driver.Tx, error)           { return nil, errors.New("nothing") }

func TestConnections_ANewOneIsTold(t *testing.T) {
	t.Parallel()
	m := newMetter()
	db := openFake(t, func() driver.Conn { return &fakeConn{} })
	for range 3 {
		m.useBriefly(t, db)
		require.Equal(t, 1, m.n)
	}
	first := m.use(t, db)
	for range 3 {
		m.useBriefly(t, db) // the first one is taken
		require.Equal(t, 2, m.n)
	}
	require.NoError(t, first.Close())
	m.useBriefly(t, db)
	require.Equal(t, 2, m.n)
	require.NoError(t, newMetter().use(t, db).Close())
	require.Equal(t, 2, m.n)

	db.SetMaxIdleConns(-1) // closes them
	m.useBriefly(t, db)
	m.useBriefly(t, db)
	require.Equal(t, 4, m.n)
}

// The memory of connections is bounded. When it is full it begins anew, which costs an emptying for each one in use.
func TestConnections_AreBounded(t *testing.T) {
	t.Parallel()
	m := newMetter()
	db := openFake(t, func() driver.Conn { return &fakeConn{} })
	kept := m.use(t, db)
	db.SetMaxIdleConns(-1)
	for n := 2; n <= mostConnections; n++ {
		m.useBriefly(t, db)
	}
	require.Equal(t, mostConnections, m.n)
	m.connections.use(kept)
	require.Equal(t, mostConnections, m.n, "still known")
	m.useBriefly(t, db)
	require.Equal(t, mostConnections+1, m.n)
	require.Len(t, m.seen, 1)
	m.connections.use(kept)
	require.Equal(t, mostConnections+2, m.n)
	require.NoError(t, kept.Close())
}

// listConn is the connection of a wrapper that is no pointer and cannot be compared.
type listConn struct {
	*fakeConn
	_ []func()
}

// A connection that cannot be told from others may be a new one every time.
func TestConnections_ThatCannotBeCompared(t *testing.T) {
	t.Parallel()
	for name, conn := range map[string]driver.Conn{
		"AList":          listConn{fakeConn: &fakeConn{}},
		"AListInAStruct": struct{ driver.Conn }{listConn{fakeConn: &fakeConn{}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMetter()
			db := openFake(t, func() driver.Conn { return conn })
			for n := range 3 {
				require.NotPanics(t, func() { m.useBriefly(t, db) })
				require.Equal(t, n+1, m.n)
			}
		})
	}
}

// Over a pgx pool every use gives another driver's connection to the same physical one.
func TestConnections_OfAPgxPool(t *testing.T) {
	t.Parallel()
	pool, err := pgxpool.New(t.Context(), services.PostgreSQL(t))
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	db := stdlib.OpenDBFromPool(pool)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	m, other := newMetter(), newMetter()
	drivers := map[any]bool{}
	for range 3 {
		conn := m.use(t, db)
		require.NoError(t, conn.Raw(func(c any) error {
			drivers[c] = true
			return nil
		}))
		require.NoError(t, conn.Close())
		require.Equal(t, 1, m.n)
		require.Empty(t, m.seen)
		other.useBriefly(t, db)
		require.Equal(t, 1, other.n, "each store for itself")
	}
	require.Len(t, drivers, 3)
	pool.Reset()
	m.useBriefly(t, db)
	require.Equal(t, 2, m.n)
}
