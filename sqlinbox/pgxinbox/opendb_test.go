package pgxinbox_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox/internal/dialect"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox/internal/engine"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox/internal/pgclaim"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox/pgxinbox"
	"github.com/watermill-contrib/watermill-inbox/tests/services"
)

// openService is an inbox over OpenDB on one connection, in a schema of its own.
type openService struct {
	db    *sql.DB
	admin *sql.DB
	in    *inbox.Inbox
}

// newOpenService opens it, with wrap around the driver.
func newOpenService(t *testing.T, wrap func(driver.Connector) driver.Connector) *openService {
	t.Helper()
	ctx := context.Background()
	config, err := pgx.ParseConfig(services.PostgreSQL(t))
	require.NoError(t, err)
	schema := "t_" + strings.ReplaceAll(inbox.NewUUID(), "-", "")
	config.RuntimeParams["search_path"] = schema
	s := &openService{admin: stdlib.OpenDB(*config), db: sql.OpenDB(wrap(pgxinbox.Connector(stdlib.GetConnector(*config))))}
	s.db.SetMaxOpenConns(1)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		require.NoError(t, s.db.Close())
		_, err := s.admin.ExecContext(ctx, "DROP SCHEMA "+schema+" CASCADE")
		require.NoError(t, err)
		require.NoError(t, s.admin.Close())
	})
	_, err = s.admin.ExecContext(ctx, fmt.Sprintf("CREATE SCHEMA %s; CREATE TABLE %[1]s.effects (name text NOT NULL)", schema))
	require.NoError(t, err)
	store, err := sqlinbox.NewStore(ctx, s.db, sqlinbox.Config{
		Dialect: sqlinbox.PostgreSQL, InitializeSchema: true, DoneTTL: -1, InFlightWait: -1,
	})
	require.NoError(t, err)
	s.in, err = inbox.New(store, inbox.Config{Consumer: func(*message.Message) string { return "charge" }})
	require.NoError(t, err)
	return s
}

func asItIs(c driver.Connector) driver.Connector { return c }

// handle gives a message to a handler that writes an effect.
func (s *openService) handle(id, payload string, then func(ctx context.Context, tx *sql.Tx) ([]*message.Message, error)) error {
	_, err := s.in.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		tx, err := sqlinbox.TxFromContext(msg.Context())
		if err != nil {
			return nil, err
		}
		if _, err := tx.ExecContext(msg.Context(), "INSERT INTO effects (name) VALUES ($1)", payload); err != nil {
			return nil, err
		}
		return then(msg.Context(), tx)
	})(message.NewMessage(id, []byte(payload)))
	return err
}

func (s *openService) number(t *testing.T, db *sql.DB, query string) (n int) {
	t.Helper()
	require.NoError(t, db.QueryRowContext(t.Context(), query).Scan(&n))
	return n
}

func nothingElse(context.Context, *sql.Tx) ([]*message.Message, error) { return nil, nil }

const backendPID = "SELECT pg_backend_pid()"

func TestOpenDB_IsPgxsOwnDriverOtherwise(t *testing.T) {
	t.Parallel()
	s := newOpenService(t, asItIs)
	conn, err := s.db.Conn(t.Context())
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, conn.Raw(func(c any) error {
		tx, err := c.(driver.ConnBeginTx).BeginTx(t.Context(), driver.TxOptions{})
		require.NoError(t, err)
		require.Equal(t, "stdlib.wrapTx", fmt.Sprintf("%T", tx))
		require.NoError(t, tx.Rollback())
		require.NoError(t, c.(interface{ Conn() *pgx.Conn }).Conn().Ping(t.Context()))
		return nil
	}))

	// A request of another database's store, over this driver by mistake: it has no claim for it.
	ctx := pgclaim.WithRequest(t.Context(), &pgclaim.Request{Claim: &engine.Claim{}})
	tx, err := conn.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelSerializable, ReadOnly: true})
	require.NoError(t, err)
	var level, readOnly string
	require.NoError(t, tx.QueryRowContext(t.Context(), "SELECT current_setting('transaction_isolation'), current_setting('transaction_read_only')").Scan(&level, &readOnly))
	require.Equal(t, "serializable on", level+" "+readOnly)
	require.NoError(t, tx.Rollback())
}

func TestConnector_LeavesOthersAsTheyAre(t *testing.T) {
	t.Parallel()
	conn, refused := &hidingConn{}, errors.New("refused")
	got, err := pgxinbox.Connector(otherConnector{conn, nil}).Connect(t.Context())
	require.NoError(t, err)
	require.Same(t, conn, got)
	_, err = pgxinbox.Connector(otherConnector{nil, refused}).Connect(t.Context())
	require.ErrorIs(t, err, refused)
}

type otherConnector struct {
	conn driver.Conn
	err  error
}

func (c otherConnector) Connect(context.Context) (driver.Conn, error) { return c.conn, c.err }
func (otherConnector) Driver() driver.Driver                          { return nil }

// A handler's own transaction on the same pool is one of its own.
func TestOpenDB_TheRequestDoesNotReachTheHandler(t *testing.T) {
	t.Parallel()
	s := newOpenService(t, asItIs)
	s.db.SetMaxOpenConns(2)
	require.NoError(t, s.handle("42", "pay", func(ctx context.Context, _ *sql.Tx) ([]*message.Message, error) {
		own, err := s.db.BeginTx(ctx, nil)
		require.NoError(t, err)
		_, err = own.ExecContext(ctx, "INSERT INTO effects (name) VALUES ('own')")
		require.NoError(t, err)
		return nil, own.Commit()
	}))
	require.Equal(t, 1, s.number(t, s.admin, "SELECT count(*) FROM effects WHERE name = 'pay'"))
	require.Equal(t, 1, s.number(t, s.admin, "SELECT count(*) FROM effects WHERE name = 'own'"))
	require.Equal(t, 1, s.number(t, s.admin, "SELECT count(*) FROM watermill_inbox"))
}

// Whatever a claim finds, the connection goes on to be used.
func TestOpenDB_ATakenKeyLeavesTheConnectionUsable(t *testing.T) {
	t.Parallel()
	for name, wrap := range map[string]func(driver.Connector) driver.Connector{"Plain": asItIs, "Hidden": hide} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newOpenService(t, wrap)
			require.NoError(t, s.handle("42", "pay", nothingElse))
			pid := s.number(t, s.db, backendPID)
			usable := func() {
				t.Helper()
				require.Equal(t, pid, s.number(t, s.db, backendPID))
				require.Zero(t, s.db.Stats().InUse)
				require.NoError(t, s.handle(inbox.NewUUID(), "other", nothingElse))
				require.Equal(t, pid, s.number(t, s.db, backendPID))
			}
			for range 3 {
				require.NoError(t, s.handle("42", "pay", nothingElse))
				usable()
			}
			require.ErrorIs(t, s.handle("42", "pay more", nothingElse), inbox.ErrMismatch)
			usable()

			holder, err := s.admin.BeginTx(t.Context(), nil)
			require.NoError(t, err)
			defer holder.Rollback() //nolint:errcheck // the end of the test
			var schema string
			require.NoError(t, holder.QueryRowContext(t.Context(), "SELECT current_schema()").Scan(&schema))
			space := engine.NewLockSpace(schema, engine.DefaultTablePrefix, "inbox")
			_, err = holder.ExecContext(t.Context(), "SELECT pg_advisory_xact_lock($1)", space.ID(inbox.Key{Consumer: "charge", ID: "43"}.Storage()))
			require.NoError(t, err)
			require.ErrorIs(t, s.handle("43", "pay", nothingElse), inbox.ErrInFlight)
			usable()
			require.NoError(t, holder.Rollback())
			require.NoError(t, s.handle("43", "pay", nothingElse))
			usable()
			require.Equal(t, 2, s.number(t, s.admin, "SELECT count(*) FROM effects WHERE name = 'pay'"))

			require.NoError(t, s.admin.QueryRowContext(t.Context(), "SELECT pg_terminate_backend($1)", pid).Scan(new(bool)))
			require.NoError(t, s.handle("44", "pay", nothingElse), "an idle connection that is dead is none of the message's")
		})
	}
}

// The handler's COMMIT or ROLLBACK by SQL is found also where a wrapper hides the connection, and before its messages
// are recorded: outside the transaction that would be for good.
func TestOpenDB_TransactionEndedBySQL(t *testing.T) {
	t.Parallel()
	own := errors.New("declined")
	for name, wrap := range map[string]func(driver.Connector) driver.Connector{"Plain": asItIs, "Hidden": hide, "Foreign": foreign} {
		for _, end := range []string{"COMMIT", "ROLLBACK"} {
			for then, returned := range map[string]error{"Succeeds": nil, "Fails": own} {
				if name == "Foreign" && returned != nil {
					continue // the message is not acked anyway, and only a commit is worth a question
				}
				t.Run(name+"/"+end+"/"+then, func(t *testing.T) {
					t.Parallel()
					s := newOpenService(t, wrap)
					err := s.handle("42", "pay", func(ctx context.Context, tx *sql.Tx) ([]*message.Message, error) {
						_, err := tx.ExecContext(ctx, end)
						require.NoError(t, err)
						return []*message.Message{message.NewMessage("1", nil)}, returned
					})
					require.ErrorIs(t, err, inbox.ErrTxManaged)
					require.True(t, inbox.IsTransient(err))
					if returned != nil {
						require.ErrorIs(t, err, returned)
					}
					require.Zero(t, s.number(t, s.admin, "SELECT count(*) FROM watermill_inbox_produced"))
					committed := map[string]int{"COMMIT": 1, "ROLLBACK": 0}[end]
					require.Equal(t, committed, s.number(t, s.admin, "SELECT count(*) FROM watermill_inbox"))
					require.Equal(t, committed, s.number(t, s.admin, "SELECT count(*) FROM effects"))
					require.Zero(t, s.db.Stats().InUse)

					require.NoError(t, s.handle("42", "pay", func(context.Context, *sql.Tx) ([]*message.Message, error) {
						return []*message.Message{message.NewMessage("1", nil)}, nil
					}))
					require.Equal(t, 1, s.number(t, s.admin, "SELECT count(*) FROM effects"))
				})
			}
		}
	}
}

func TestOpenDB_IsolationLevelOfAClaimedTransaction(t *testing.T) {
	t.Parallel()
	s := newOpenService(t, asItIs)
	for level, want := range map[sql.IsolationLevel]string{
		sql.LevelDefault: "read committed", sql.LevelReadCommitted: "read committed",
		sql.LevelRepeatableRead: "repeatable read", sql.LevelSerializable: "serializable",
	} {
		tx, request := beginClaimed(t, s.db, inbox.NewUUID(), level)
		require.True(t, request.Claimed)
		var got string
		require.NoError(t, tx.QueryRowContext(t.Context(), "SELECT current_setting('transaction_isolation')").Scan(&got))
		require.Equal(t, want, got)
		require.NoError(t, tx.Rollback())
	}
}

// beginClaimed begins as a store does.
func beginClaimed(t *testing.T, db *sql.DB, id string, level sql.IsolationLevel) (*sql.Tx, *pgclaim.Request) {
	t.Helper()
	postgres := dialect.PostgreSQL()
	request := &pgclaim.Request{
		Claimer: &pgclaim.Claimer{SQL: postgres.Statements(dialect.NewNames("", engine.DefaultTablePrefix, postgres.Quote))},
		// The lock is one of the whole database: nobody else must have it.
		Claim: &engine.Claim{Key: inbox.Key{ID: id}.Storage(), LockID: engine.NewLockSpace(inbox.NewUUID()).ID(inbox.StorageKey{})},
	}
	tx, err := db.BeginTx(pgclaim.WithRequest(t.Context(), request), &sql.TxOptions{Isolation: level})
	require.NoError(t, err)
	require.True(t, request.Answered)
	return tx, request
}

// The driver's transaction says so itself, to whoever ends it.
func TestOpenDB_TheDriversTransactionTellsThatItIsOver(t *testing.T) {
	t.Parallel()
	s := newOpenService(t, asItIs)
	begin := func(id string) (*sql.Tx, *pgclaim.Request) { return beginClaimed(t, s.db, id, sql.LevelDefault) }
	for _, end := range []func(*sql.Tx) error{(*sql.Tx).Commit, (*sql.Tx).Rollback} {
		for _, statement := range []string{"COMMIT", "ROLLBACK"} {
			tx, request := begin(inbox.NewUUID())
			require.True(t, request.Claimed)
			_, err := tx.ExecContext(t.Context(), statement)
			require.NoError(t, err)
			require.ErrorIs(t, end(tx), inbox.ErrTxManaged)
		}
	}
	tx, _ := begin("42")
	require.NoError(t, tx.Commit())
	for end, want := range map[string]error{"Commit": sql.ErrTxDone, "Rollback": nil} {
		tx, request := begin("42")
		require.False(t, request.Claimed)
		require.True(t, request.Row.Found)
		require.Nil(t, request.Conn)
		if end == "Commit" {
			require.ErrorIs(t, tx.Commit(), want, "there is nothing to commit")
		} else {
			require.NoError(t, tx.Rollback())
		}
	}
}

// hide wraps a driver as tracers do: nothing of its own type is left to see.
func hide(c driver.Connector) driver.Connector { return hidingConnector{c, false} }

// foreign is a driver that knows nothing of the inbox, nor of pgx.
func foreign(c driver.Connector) driver.Connector { return hidingConnector{c, true} }

type hidingConnector struct {
	driver.Connector
	foreign bool
}

// withoutValues is a context that carries no request.
type withoutValues struct{ context.Context }

func (withoutValues) Value(any) any { return nil }

func (c hidingConnector) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return &hidingConn{conn, c.foreign}, nil
}

type hidingConn struct {
	inner   driver.Conn
	foreign bool
}

func (c *hidingConn) Prepare(query string) (driver.Stmt, error) { return c.inner.Prepare(query) }
func (c *hidingConn) Close() error                              { return c.inner.Close() }

func (c *hidingConn) Begin() (driver.Tx, error) {
	return c.BeginTx(context.Background(), driver.TxOptions{})
}

func (c *hidingConn) BeginTx(ctx context.Context, options driver.TxOptions) (driver.Tx, error) {
	if c.foreign {
		ctx = withoutValues{ctx}
	}
	return c.inner.(driver.ConnBeginTx).BeginTx(ctx, options)
}

func (c *hidingConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	return c.inner.(driver.ExecerContext).ExecContext(ctx, query, args)
}

func (c *hidingConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	return c.inner.(driver.QueryerContext).QueryContext(ctx, query, args)
}

func (c *hidingConn) CheckNamedValue(v *driver.NamedValue) error {
	return c.inner.(driver.NamedValueChecker).CheckNamedValue(v)
}

func (c *hidingConn) ResetSession(ctx context.Context) error {
	return c.inner.(driver.SessionResetter).ResetSession(ctx)
}
