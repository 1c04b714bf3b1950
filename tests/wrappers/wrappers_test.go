package wrappers

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/XSAM/otelsql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/inboxtest"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox/pgxinbox"
	"github.com/watermill-contrib/watermill-inbox/tests/services"
)

// latency makes sure that what a client pipelines is one round trip: nothing is answered before all of it was sent.
const latency = 2 * time.Millisecond

// rounds is how often each exchange is counted: every single one must cost the same.
const rounds = 10

// wrapper is one way of using a database on the driver of pgxinbox.OpenDB.
type wrapper struct {
	open func(t *testing.T, config *pgx.ConnConfig, options ...stdlib.OptionOpenDB) *sql.DB
	// write inserts an effect in the transaction that the inbox gave, by the library's own means.
	write func(ctx context.Context, db *sql.DB, tx *sql.Tx, id string) error
}

const insertEffect = "INSERT INTO effects (message_id) VALUES ($1)"

func wrappers() map[string]wrapper {
	plain := func(_ *testing.T, config *pgx.ConnConfig, options ...stdlib.OptionOpenDB) *sql.DB {
		return pgxinbox.OpenDB(*config, options...)
	}
	traced := func(_ *testing.T, config *pgx.ConnConfig, options ...stdlib.OptionOpenDB) *sql.DB {
		return otelsql.OpenDB(pgxinbox.Connector(stdlib.GetConnector(*config, options...)))
	}
	exec := func(ctx context.Context, _ *sql.DB, tx *sql.Tx, id string) error {
		_, err := tx.ExecContext(ctx, insertEffect, id)
		return err
	}
	// sqlx has no way to take over a transaction but its exported fields.
	named := func(ctx context.Context, db *sql.DB, tx *sql.Tx, id string) error {
		x := sqlx.NewDb(db, "pgx")
		_, err := (&sqlx.Tx{Tx: tx, Mapper: x.Mapper}).ExecContext(ctx, x.Rebind("INSERT INTO effects (message_id) VALUES (?)"), id)
		return err
	}
	created := func(ctx context.Context, _ *sql.DB, tx *sql.Tx, id string) error {
		orm, err := gorm.Open(postgres.New(postgres.Config{Conn: tx}), &gorm.Config{
			SkipDefaultTransaction: true, DisableAutomaticPing: true, Logger: logger.Discard,
		})
		if err != nil {
			return err
		}
		return orm.WithContext(ctx).Create(&effect{MessageID: id}).Error
	}
	return map[string]wrapper{
		"otelsql":           {traced, exec},
		"sqlx":              {plain, named},
		"gorm":              {plain, created},
		"sqlx-over-otelsql": {traced, named},
		"gorm-over-otelsql": {traced, created},
	}
}

// effect is the handler's table as gorm sees it.
type effect struct {
	MessageID string
}

// service is an inbox on one connection through a proxy that counts, in a schema of its own.
type service struct {
	wrapper
	db    *sql.DB
	admin *pgx.Conn // past the proxy
	proxy *inboxtest.Proxy
	store *sqlinbox.Store
	told  []inbox.Outcome
}

func newService(t *testing.T, w wrapper) *service {
	t.Helper()
	config, err := pgx.ParseConfig(services.PostgreSQL(t))
	require.NoError(t, err)
	schema := pgx.Identifier{"wrappers_" + rand.Text()[:12]}.Sanitize()
	config.RuntimeParams["search_path"] = schema
	s := &service{wrapper: w}
	s.admin, err = pgx.ConnectConfig(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		_, err := s.admin.Exec(ctx, "DROP SCHEMA "+schema+" CASCADE")
		require.NoError(t, err)
		require.NoError(t, s.admin.Close(ctx))
	})
	_, err = s.admin.Exec(t.Context(), "CREATE SCHEMA "+schema)
	require.NoError(t, err)
	_, err = s.admin.Exec(t.Context(), "CREATE TABLE effects (message_id text NOT NULL)")
	require.NoError(t, err)

	s.proxy, err = inboxtest.NewProxy(net.JoinHostPort(config.Host, strconv.Itoa(int(config.Port))))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.proxy.Close()) })
	s.proxy.SetLatency(latency)
	behind := config.Copy()
	behind.DialFunc = func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", s.proxy.Addr())
	}
	s.db = w.open(t, behind, stdlib.OptionShouldPing(func(context.Context, stdlib.ShouldPingParams) bool { return false }))
	s.db.SetMaxOpenConns(1)
	t.Cleanup(func() { require.NoError(t, s.db.Close()) })
	s.store, err = sqlinbox.NewStore(t.Context(), s.db, sqlinbox.Config{
		Dialect: sqlinbox.PostgreSQL, InitializeSchema: true, DoneTTL: -1,
	})
	require.NoError(t, err)
	return s
}

// handle delivers a message to a handler that writes an effect and goes on with then, if that is not nil.
func (s *service) handle(t *testing.T, id string, then func(ctx context.Context, tx *sql.Tx) ([]*message.Message, error)) error {
	t.Helper()
	in, err := inbox.New(s.store, inbox.Config{
		Consumer: func(*message.Message) string { return "charge" },
		Observer: func(_ context.Context, e inbox.Event) { s.told = append(s.told, e.Outcome) },
	})
	require.NoError(t, err)
	msg := message.NewMessage(id, []byte(`{"order_id":42}`))
	msg.SetContext(t.Context())
	_, err = in.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		ctx := msg.Context()
		tx, err := sqlinbox.TxFromContext(ctx)
		if err != nil {
			return nil, err
		}
		if err := s.write(ctx, s.db, tx, id); err != nil || then == nil {
			return nil, err
		}
		return then(ctx, tx)
	})(msg)
	return err
}

func (s *service) count(t *testing.T, table string) (n int) {
	t.Helper()
	require.NoError(t, s.admin.QueryRow(t.Context(), "SELECT count(*) FROM "+table).Scan(&n))
	return n
}

func each(t *testing.T, test func(t *testing.T, s *service)) {
	t.Helper()
	for name, w := range wrappers() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, newService(t, w))
		})
	}
}

// A first delivery is BEGIN with the claim, the handler's statement and COMMIT: the round trips of a bare transaction.
func TestClaimTravelsWithBegin(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, s *service) {
		require.NoError(t, s.handle(t, inbox.NewUUID(), nil)) // prepares the statements
		for range rounds {
			s.proxy.ResetCounts()
			require.NoError(t, s.handle(t, inbox.NewUUID(), nil))
			require.Equal(t, inboxtest.Counts{RoundTrips: 3, Statements: 4}, s.proxy.Counts(), "statements: %q", s.proxy.Log())
		}
		require.Equal(t, rounds+1, s.count(t, "effects"))
		require.Equal(t, rounds+1, s.count(t, "watermill_inbox"))
	})
}

func TestDuplicatesAreSkipped(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, s *service) {
		declined := errors.New("declined")
		id := inbox.NewUUID()
		require.ErrorIs(t, s.handle(t, id, func(context.Context, *sql.Tx) ([]*message.Message, error) { return nil, declined }), declined)
		require.Zero(t, s.count(t, "effects"))
		for range rounds {
			require.NoError(t, s.handle(t, id, nil))
		}
		require.Equal(t, 1, s.count(t, "effects"))
		require.Equal(t, inbox.OutcomeFailed, s.told[0])
		require.Equal(t, inbox.OutcomeProcessed, s.told[1])
		for _, outcome := range s.told[2:] {
			require.Equal(t, inbox.OutcomeDuplicate, outcome)
		}
		s.proxy.ResetCounts()
		require.NoError(t, s.handle(t, id, nil))
		require.Equal(t, 2, s.proxy.Counts().RoundTrips, "statements: %q", s.proxy.Log())
		require.Zero(t, s.db.Stats().InUse)
	})
}

// The handler has database/sql's own transaction, with all that belongs to it.
func TestTheTransactionIsGenuine(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, s *service) {
		require.NoError(t, s.handle(t, "42", func(ctx context.Context, tx *sql.Tx) ([]*message.Message, error) {
			insert, err := tx.PrepareContext(ctx, insertEffect)
			require.NoError(t, err)
			defer insert.Close()
			for range 2 {
				_, err := insert.ExecContext(ctx, "prepared")
				require.NoError(t, err)
			}
			_, err = tx.ExecContext(ctx, "SAVEPOINT attempt")
			require.NoError(t, err)
			_, err = tx.ExecContext(ctx, "SELECT no_such_column")
			require.Error(t, err)
			_, err = tx.ExecContext(ctx, "ROLLBACK TO SAVEPOINT attempt")
			require.NoError(t, err)
			var ids string
			require.NoError(t, tx.QueryRowContext(ctx, "SELECT string_agg(message_id, ' ' ORDER BY message_id) FROM effects").Scan(&ids))
			require.Equal(t, "42 prepared prepared", ids)
			return nil, nil
		}))
		require.Equal(t, 3, s.count(t, "effects"))
		require.Equal(t, 1, s.count(t, "watermill_inbox"))
	})
}

// A handler that ends the transaction by SQL is told so, before anything is recorded outside of it.
func TestTransactionEndedBySQLIsFound(t *testing.T) {
	t.Parallel()
	each(t, requireEndFound)
	t.Run("otelsql over another driver", func(t *testing.T) {
		t.Parallel()
		requireEndFound(t, newService(t, overAnotherDriver()))
	})
}

func requireEndFound(t *testing.T, s *service) {
	t.Helper()
	produced := []*message.Message{message.NewMessage("1", nil)}
	for _, end := range []string{"COMMIT", "ROLLBACK"} {
		before := s.count(t, "effects")
		err := s.handle(t, end, func(ctx context.Context, tx *sql.Tx) ([]*message.Message, error) {
			_, err := tx.ExecContext(ctx, end)
			return produced, err
		})
		require.ErrorIs(t, err, inbox.ErrTxManaged)
		require.Zero(t, s.count(t, "watermill_inbox_produced"))
		require.NoError(t, s.handle(t, end, func(context.Context, *sql.Tx) ([]*message.Message, error) { return nil, nil }))
		require.Equal(t, before+1, s.count(t, "effects"))
	}
	require.Zero(t, s.db.Stats().InUse)
}

// overAnotherDriver hides pgx's own driver.
func overAnotherDriver() wrapper {
	w := wrappers()["otelsql"]
	w.open = func(_ *testing.T, config *pgx.ConnConfig, options ...stdlib.OptionOpenDB) *sql.DB {
		return otelsql.OpenDB(stdlib.GetConnector(*config, options...))
	}
	return w
}

// A driver that is none of pgxinbox's has the claim sent to it by itself, and is asked before COMMIT whether the
// transaction still is the claim's: two round trips more.
func TestAnotherDriverClaimsInAStatementOfItsOwn(t *testing.T) {
	t.Parallel()
	s := newService(t, overAnotherDriver())
	require.NoError(t, s.handle(t, "42", nil))
	s.proxy.ResetCounts()
	require.NoError(t, s.handle(t, "43", nil))
	require.Equal(t, inboxtest.Counts{RoundTrips: 5, Statements: 5}, s.proxy.Counts(), "statements: %q", s.proxy.Log())
	require.NoError(t, s.handle(t, "43", nil))
	require.Equal(t, 2, s.count(t, "effects"))
}
