package tests_test

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/url"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/watermill-contrib/watermill-inbox/tests"
	"github.com/watermill-contrib/watermill-inbox/tests/services"
)

// pooledModes are pgx's query modes that need no prepared statement: Debian's pgbouncer 1.18 keeps none for its
// clients. From 1.21 on, with max_prepared_statements set, the default mode works as well.
func pooledModes() []string { return []string{"exec", "simple_protocol"} }

// pooledColumns are the columns of PostgreSQL behind pgbouncer in transaction mode, in each of these modes. Everything
// goes through it, the tests' own look at the database too.
//
// Two cases are left to the direct connection by Features: the one that stops a server of its own, since the pooler
// stands in front of the shared one, and the one that makes its session read-only, since the pooler would hand that
// session to other tests. The storms at stricter isolation levels, the longest cases, run in the first mode only.
func pooledColumns() []column {
	var pooled []column
	for _, mode := range pooledModes() {
		for _, c := range columns() {
			switch {
			case !c.features.Server || c.features.Name == "mariadb":
				continue
			case c.features.Name == "pgx-opendb" && mode != pooledModes()[0]: // it differs in one batch only
				continue
			}
			c.features.Variant = mode
			c.features.NoOutbox = true
			c.features.StartServer, c.features.ReadOnly = nil, ""
			if mode != pooledModes()[0] {
				c.features.Isolation = c.features.Isolation[:1]
			}
			c.harness = behindPooler(c.harness, mode)
			pooled = append(pooled, c)
		}
	}
	return pooled
}

func behindPooler(harness tests.Harness, mode string) tests.Harness {
	return func(t testing.TB, o tests.Options) *tests.Env {
		t.Helper()
		if o.DSN == "" {
			u, err := url.Parse(services.PgBouncer(t))
			require.NoError(t, err)
			query := u.Query()
			query.Set("default_query_exec_mode", mode)
			u.RawQuery = query.Encode()
			o.DSN = u.String()
		}
		return harness(t, o)
	}
}

// sparePooler keeps pgx from sending cancel requests to pgbouncer: 1.18 ends with a failed assertion ("bad client
// state") when the client that sent one goes away, and takes every other test with it. They are only a courtesy to the
// server when pgx closes a connection.
func sparePooler(dsn string, config *pgconn.Config) {
	if u, err := url.Parse(dsn); err != nil || !u.Query().Has("default_query_exec_mode") {
		return
	}
	dial := config.DialFunc
	config.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		return withoutCancel{conn}, err
	}
}

type withoutCancel struct{ net.Conn }

var errCancelRequest = errors.New("no cancel request is sent")

func (c withoutCancel) Write(b []byte) (int, error) {
	const length, cancelRequest = 16, 80877102
	if len(b) == length && binary.BigEndian.Uint32(b[4:]) == cancelRequest {
		return 0, errCancelRequest
	}
	return c.Conn.Write(b)
}

func TestH2_ThroughPooler(t *testing.T) {
	for _, mode := range pooledModes() {
		t.Run(mode, func(t *testing.T) {
			for _, c := range pooledColumns() {
				if c.features.Variant == mode {
					tests.TestStore(t, c.features, c.harness)
				}
			}
		})
	}
}
