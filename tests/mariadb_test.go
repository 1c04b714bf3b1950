package tests_test

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"database/sql/driver"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox"
	"github.com/watermill-contrib/watermill-inbox/tests"
	"github.com/watermill-contrib/watermill-inbox/tests/services"
)

// mariadbReadOnly is of the session, as a role's or a fail-over's would be.
const mariadbReadOnly = "SET SESSION TRANSACTION READ ONLY"

// startMariaDB starts a server of the test's own.
func startMariaDB(t testing.TB) tests.Server {
	t.Helper()
	return services.StartMariaDB(t)
}

// mariadbSpace is a database (schema) of its own on a MariaDB server, with a business table.
type mariadbSpace struct {
	dsn    string
	schema string
	db     *sql.DB // past any proxy
}

func openMariaDBSpace(t testing.TB, o tests.Options) mariadbSpace {
	t.Helper()
	ctx := context.Background()
	s := mariadbSpace{dsn: o.DSN, schema: o.Space}
	if s.dsn == "" {
		s.dsn = services.MariaDB(t)
	}
	if s.schema == "" {
		s.schema = "t_" + strings.ReplaceAll(inbox.NewUUID(), "-", "")
		root := s.open(t, nil)
		_, err := root.ExecContext(ctx, "CREATE DATABASE "+s.schema)
		require.NoError(t, err)
		t.Cleanup(func() { dropDatabases(root, s.schema) })
		_, err = root.ExecContext(ctx, "CREATE TABLE "+s.schema+".effects (name VARCHAR(200) NOT NULL) ENGINE = InnoDB")
		require.NoError(t, err)
	}
	s.db = s.open(t, func(c *mysql.Config) {
		if !o.Unmigrated { // else the database may be missing, too
			c.DBName = s.schema
		}
	})
	s.db.SetMaxOpenConns(4)
	return s
}

// dropDatabases drops the databases whose name begins so, see Env.Space.
func dropDatabases(db *sql.DB, prefix string) {
	// A case that failed may have left a transaction open.
	ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
	defer cancel()
	var names sql.NullString
	_ = db.QueryRowContext(ctx, "SELECT group_concat(schema_name) FROM information_schema.schemata WHERE left(schema_name, ?) = ?",
		len(prefix), prefix).Scan(&names)
	for name := range strings.SplitSeq(names.String, ",") {
		_, _ = db.ExecContext(ctx, "DROP DATABASE `"+name+"`")
	}
}

// open opens a pool as the documentation says, after the change.
func (s mariadbSpace) open(t testing.TB, change func(*mysql.Config)) *sql.DB {
	t.Helper()
	return sql.OpenDB(s.connector(t, change))
}

func (s mariadbSpace) connector(t testing.TB, change func(*mysql.Config)) driver.Connector {
	t.Helper()
	config, err := mysql.ParseDSN(s.dsn)
	require.NoError(t, err)
	config.DBName = ""
	config.InterpolateParams = true
	config.Params = map[string]string{"tx_isolation": "'READ-COMMITTED'"}
	config.Logger = &mysql.NopLogger{} // it would print every connection that a case cuts
	if change != nil {
		change(config)
	}
	connector, err := mysql.NewConnector(config)
	require.NoError(t, err)
	return connector
}

// locks tells whether somebody holds the lock of the migrations, whose name is made from the tables' place.
func (s mariadbSpace) locks(ctx context.Context, prefix string) (n int, err error) {
	var b []byte
	for _, part := range []string{s.schema, prefix, "migrations"} {
		b = binary.BigEndian.AppendUint32(b, uint32(len(part)))
		b = append(b, part...)
	}
	space := sha256.Sum256(b)
	sum := sha256.Sum256(append(space[:], make([]byte, 16)...))
	name := fmt.Sprintf("watermill_inbox_%d", int64(binary.BigEndian.Uint64(sum[:8])))
	err = s.db.QueryRowContext(ctx, "SELECT IS_USED_LOCK(?) IS NOT NULL", name).Scan(&n)
	return n, err
}

// mariadbHarness is MariaDB through go-sql-driver/mysql; the space is a database (schema).
func mariadbHarness(t testing.TB, o tests.Options) *tests.Env {
	t.Helper()
	s := openMariaDBSpace(t, o)
	t.Cleanup(func() { _ = s.db.Close() })
	connector := s.connector(t, func(c *mysql.Config) {
		if !o.Unmigrated {
			c.DBName = s.schema
		}
		if o.Via != nil {
			c.Addr = o.Via(c.Addr)
		}
		// The server's business here, to be set in the DSN: see the package documentation.
		if idle := o.Config.IdleTimeout; idle > 0 {
			c.Params["idle_transaction_timeout"] = strconv.Itoa(int((idle + time.Second - 1) / time.Second))
		}
		if o.Config.Isolation > sql.LevelReadCommitted {
			c.Params["innodb_snapshot_isolation"] = "ON" // newer servers' default
		}
	})
	if o.BeforeCommit != nil {
		connector = mariadbConnector{connector, o.BeforeCommit}
	}
	db := sql.OpenDB(connector)
	t.Cleanup(func() { _ = db.Close() })

	o.Config.Dialect, o.Config.Schema = sqlinbox.MySQL, s.schema
	prefix := prefixOf(o.Config)
	table := func(suffix string) string { return "`" + s.schema + "`.`" + prefix + suffix + "`" }
	env := &tests.Env{
		Space: s.schema, DSN: s.dsn, Config: o.Config, DB: s.db,
		Memory: table(""), Produced: table("_produced"), Operations: table("_operations"), Consumers: table("_consumers"), Horizons: table("_horizons"), Migrations: table("_migrations"),
		Effects: "`" + s.schema + "`.effects",
		Locks:   func(ctx context.Context) (int, error) { return s.locks(ctx, prefix) },
		Cause: func(err error) error {
			var cause *mysql.MySQLError
			if errors.As(err, &cause) {
				return cause
			}
			return nil
		},
	}
	withOutbox(t, env, o.Space == "")
	openSQL(t, env, db, o, "INSERT INTO "+env.Effects+" (name) VALUES (?)")
	return env
}

// mariadbConnector opens connections that call a function before each COMMIT, and before what stands for it in a
// migration, where DDL commits by itself: the note of the version.
type mariadbConnector struct {
	driver.Connector
	beforeCommit func()
}

func (c mariadbConnector) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return mariadbConn{conn.(mysqlConn), c.beforeCommit}, nil
}

// mysqlConn is what the driver's connections can do.
type mysqlConn interface {
	driver.Conn
	driver.ConnBeginTx
	driver.ConnPrepareContext
	driver.ExecerContext
	driver.NamedValueChecker
	driver.Pinger
	driver.QueryerContext
	driver.SessionResetter
	driver.Validator
}

type mariadbConn struct {
	mysqlConn
	beforeCommit func()
}

func (c mariadbConn) BeginTx(ctx context.Context, o driver.TxOptions) (driver.Tx, error) {
	tx, err := c.mysqlConn.BeginTx(ctx, o)
	return mariadbTx{tx, c.beforeCommit}, err
}

func (c mariadbConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	if strings.HasPrefix(query, "INSERT INTO") && strings.Contains(query, "_migrations`") {
		c.beforeCommit()
	}
	return c.mysqlConn.ExecContext(ctx, query, args)
}

type mariadbTx struct {
	driver.Tx
	beforeCommit func()
}

func (tx mariadbTx) Commit() error {
	tx.beforeCommit()
	return tx.Tx.Commit()
}

// mariadbInbox is an inbox on an environment with an account of every name.
func mariadbInbox(t *testing.T, observe func(inbox.Event), accounts ...string) (*tests.Env, *inbox.Inbox) {
	env := mariadbHarness(t, tests.Options{})
	_, err := env.DB.ExecContext(t.Context(), "CREATE TABLE accounts (name VARCHAR(9) PRIMARY KEY, n INT NOT NULL) ENGINE = InnoDB")
	require.NoError(t, err)
	for _, name := range accounts {
		_, err := env.DB.ExecContext(t.Context(), "INSERT INTO accounts VALUES (?, 0)", name)
		require.NoError(t, err)
	}
	in, err := inbox.New(env.Store, inbox.Config{
		Consumer: func(*message.Message) string { return "charge" },
		Observer: func(_ context.Context, e inbox.Event) { observe(e) },
	})
	require.NoError(t, err)
	return env, in
}

func book(ctx context.Context, env *tests.Env, account string) error {
	return env.Exec(ctx, "UPDATE accounts SET n = n + 1 WHERE name = '"+account+"'")
}

func balance(t *testing.T, env *tests.Env, account string) (n int) {
	require.NoError(t, env.DB.QueryRowContext(t.Context(), "SELECT n FROM accounts WHERE name = ?", account).Scan(&n))
	return n
}

// TestMariaDB_DeadlockIsRunAgain has two messages lock the same two rows, each from another end.
func TestMariaDB_DeadlockIsRunAgain(t *testing.T) {
	t.Parallel()
	var retries atomic.Int64
	env, in := mariadbInbox(t, func(e inbox.Event) { retries.Add(int64(e.TxRetries)) }, "a", "b")
	var both sync.WaitGroup // both have locked their first row
	both.Add(2)
	results := make(chan error, 2)
	for _, order := range [][2]string{{"a", "b"}, {"b", "a"}} {
		first := true
		handler := in.Middleware(func(msg *message.Message) ([]*message.Message, error) {
			ctx := msg.Context()
			if err := book(ctx, env, order[0]); err != nil {
				return nil, err
			}
			if first {
				first = false
				both.Done()
				both.Wait()
			}
			return nil, book(ctx, env, order[1])
		})
		go func() {
			_, err := handler(message.NewMessage(inbox.NewUUID(), nil))
			results <- err
		}()
	}
	require.NoError(t, <-results)
	require.NoError(t, <-results)
	require.EqualValues(t, 1, retries.Load())
	require.Equal(t, 2, balance(t, env, "a"))
	require.Equal(t, 2, balance(t, env, "b"))
}

// TestMariaDB_LockTimeoutIsRunAgain has a handler wait in vain for a row: that undoes only its statement, and here the
// whole transaction.
func TestMariaDB_LockTimeoutIsRunAgain(t *testing.T) {
	t.Parallel()
	var retries atomic.Int64
	env, in := mariadbInbox(t, func(e inbox.Event) { retries.Add(int64(e.TxRetries)) }, "a", "b")
	holder, err := env.DB.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	defer holder.Rollback() //nolint:errcheck // at the latest
	_, err = holder.ExecContext(t.Context(), "UPDATE accounts SET n = 10 WHERE name = 'b'")
	require.NoError(t, err)

	calls := 0
	_, err = in.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		ctx := msg.Context()
		if calls++; calls == 2 {
			require.NoError(t, holder.Commit())
		}
		if err := errors.Join(env.Exec(ctx, "SET innodb_lock_wait_timeout = 1"), book(ctx, env, "a")); err != nil {
			return nil, err
		}
		return nil, book(ctx, env, "b")
	})(message.NewMessage(inbox.NewUUID(), nil))
	require.NoError(t, err)
	require.EqualValues(t, 1, retries.Load())
	require.Equal(t, 1, balance(t, env, "a"))
	require.Equal(t, 11, balance(t, env, "b"))
}

// TestMariaDB_HiddenDeadlockIsNotAcked has the loser of a deadlock hide the error and go on: its claim is gone with its
// transaction, so an ack would leave a message that was acked and is not remembered.
func TestMariaDB_HiddenDeadlockIsNotAcked(t *testing.T) {
	t.Parallel()
	env, in := mariadbInbox(t, func(inbox.Event) {}, "a", "b")
	var both sync.WaitGroup
	both.Add(2)
	var hidden atomic.Int64
	results := make(chan error, 2)
	for _, order := range [][2]string{{"a", "b"}, {"b", "a"}} {
		handler := in.Middleware(func(msg *message.Message) ([]*message.Message, error) {
			ctx := msg.Context()
			if err := book(ctx, env, order[0]); err != nil {
				return nil, err
			}
			both.Done()
			both.Wait()
			if err := book(ctx, env, order[1]); err != nil {
				hidden.Add(1)
			}
			return nil, nil
		})
		go func() {
			_, err := handler(message.NewMessage(inbox.NewUUID(), nil))
			results <- err
		}()
	}
	err := errors.Join(<-results, <-results)
	require.EqualValues(t, 1, hidden.Load())
	require.ErrorIs(t, err, inbox.ErrTxAborted)
	require.True(t, inbox.IsTransient(err))
	require.Equal(t, 1, env.Rows(t), "only the winner is remembered")
}
