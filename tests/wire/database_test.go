package wire

import (
	"context"
	"crypto/rand"
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/watermill-contrib/watermill-inbox/inboxtest"
)

// latency makes sure that what a client pipelines is one round trip: nothing is answered before all of it was sent.
const latency = 2 * time.Millisecond

// database is a schema of its own on a server, and the way to it.
type database struct {
	config *pgx.ConnConfig
	schema string
	admin  *pgx.Conn // never through the proxy
}

// newDatabase makes a schema with the handler's table, dropped when the test ends.
func newDatabase(t *testing.T, dsn string) *database {
	t.Helper()
	config, err := pgx.ParseConfig(dsn)
	require.NoError(t, err)
	d := &database{config: config, schema: "wire_" + rand.Text()[:12]}
	config.RuntimeParams["search_path"] = d.name()
	d.admin, err = pgx.ConnectConfig(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		_, err := d.admin.Exec(ctx, "DROP SCHEMA "+d.name()+" CASCADE")
		require.NoError(t, err)
		require.NoError(t, d.admin.Close(ctx))
	})
	d.exec(t, "CREATE SCHEMA "+d.name())
	d.exec(t, `CREATE TABLE effects (
		id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
		message_id text NOT NULL,
		line       integer NOT NULL
	)`)
	return d
}

func (d *database) name() string { return pgx.Identifier{d.schema}.Sanitize() }

// behindProxy gives the same schema, seen through a proxy that counts.
func (d *database) behindProxy(t *testing.T) (*database, *inboxtest.Proxy) {
	t.Helper()
	proxy, err := inboxtest.NewProxy(net.JoinHostPort(d.config.Host, strconv.Itoa(int(d.config.Port))))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, proxy.Close()) })
	proxy.SetLatency(latency)
	behind := *d
	behind.config = d.config.Copy()
	behind.config.DialFunc = func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", proxy.Addr())
	}
	return &behind, proxy
}

func (d *database) exec(t *testing.T, sql string, args ...any) {
	t.Helper()
	_, err := d.admin.Exec(t.Context(), sql, args...)
	require.NoError(t, err)
}

// text gives the one value of a query, as text.
func (d *database) text(t *testing.T, sql string) string {
	t.Helper()
	var value string
	require.NoError(t, d.admin.QueryRow(t.Context(), sql).Scan(&value))
	return value
}

// number gives the one value of a query, a bigint.
func (d *database) number(t *testing.T, sql string) int64 {
	t.Helper()
	var value int64
	require.NoError(t, d.admin.QueryRow(t.Context(), sql).Scan(&value))
	return value
}

// wal is the place in the server's write-ahead log, in bytes since its beginning.
func (d *database) wal(t *testing.T) int64 {
	t.Helper()
	return d.number(t, "SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint")
}

// nextXID is the transaction id that the next writing transaction of the server will get.
func (d *database) nextXID(t *testing.T) string {
	t.Helper()
	return d.text(t, "SELECT pg_snapshot_xmax(pg_current_snapshot())::text")
}
