package sqlinbox

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox/internal/dialect"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox/internal/engine"
)

// Validate asks the database whether an inbox of config can work on it: it accepts writes (else inbox.ErrReadOnly) and
// its tables are there in the version that this program needs, or a newer one (else inbox.ErrSchema, which names what
// to run). It warns through Config.Logger of settings under which a vanished client keeps its message for long.
func Validate(ctx context.Context, db *sql.DB, config Config) error {
	config, err := prepare(ctx, db, config)
	if err != nil {
		return err
	}
	b := newBackend(db, config)
	if err := b.validate(ctx, schemaOf(config)); err != nil {
		return fmt.Errorf("inbox: validate: %w", b.named(err))
	}
	return nil
}

func (b *backend) validate(ctx context.Context, s dialect.Schema) error {
	if err := b.writable(ctx); err != nil {
		return err
	}
	missing, err := missingTables(ctx, b.db, s)
	if err != nil {
		return err
	}
	if len(missing) > 0 {
		return fmt.Errorf("%w (not found: %s)", errNoSuchTable, strings.Join(missing, ", "))
	}
	version, err := appliedVersion(ctx, b.db, s)
	if err != nil {
		return err
	}
	if version < s.Latest() {
		return fmt.Errorf("%w (they have version %d, this program needs %d)", errNoSuchTable, version, s.Latest())
	}
	if b.config.Dialect == SQLite {
		return b.sqliteWritable(ctx, s)
	}
	return nil
}

// sqliteWritable executes a statement that changes nothing, but needs the right to. A database that is read-only says so
// at once; one whose writer is at work would let it wait, and is not read-only.
func (b *backend) sqliteWritable(ctx context.Context, s dialect.Schema) error {
	limited, cancel := context.WithTimeout(ctx, shortestWriterWait)
	defer cancel()
	_, err := b.db.ExecContext(limited, "UPDATE "+s.Tables.Consumers+" SET key_scheme = key_scheme WHERE id IS NULL") //nolint:gosec // a validated name
	if err == nil || b.Fault(err) == engine.FaultBusy || limited.Err() != nil {
		return ctx.Err()
	}
	return err
}

// writable finds a standby, and a database or role that is read-only by its settings; it also looks at the settings
// that tell how soon the server notices a client that vanished.
func (b *backend) writable(ctx context.Context) error {
	switch b.config.Dialect {
	case MySQL:
		return b.mysqlWritable(ctx)
	case SQLite:
		return nil
	}
	var standby, readOnly bool
	var idle, keepalive int64
	err := b.db.QueryRowContext(ctx, `SELECT pg_is_in_recovery(), current_setting('transaction_read_only')::boolean,
  (SELECT setting::bigint FROM pg_settings WHERE name = 'idle_in_transaction_session_timeout'),
  (SELECT setting::bigint FROM pg_settings WHERE name = 'tcp_keepalives_idle')`).Scan(&standby, &readOnly, &idle, &keepalive)
	switch {
	case err != nil:
		return err
	case standby:
		return fmt.Errorf("%w: it is a standby; connect to the primary (target_session_attrs=read-write)", inbox.ErrReadOnly)
	case readOnly:
		return fmt.Errorf("%w: default_transaction_read_only is on", inbox.ErrReadOnly)
	}
	const long = 10 * time.Minute
	if b.config.IdleTimeout == 0 && idle == 0 && (keepalive == 0 || time.Duration(keepalive)*time.Second > long) {
		b.config.logger().Info("A client that vanishes inside a transaction keeps its message from all others until the server notices: set Config.IdleTimeout, or the server's idle_in_transaction_session_timeout or tcp_keepalives_idle", watermill.LogFields{
			"idle_in_transaction_session_timeout": idle, "tcp_keepalives_idle": keepalive,
		})
	}
	return nil
}

// queryer is a *sql.DB or a *sql.Conn.
type queryer interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// missingTables gives the names of the inbox's tables that are not there.
func missingTables(ctx context.Context, db queryer, s dialect.Schema) ([]string, error) {
	var missing []string
	for _, table := range s.HasTables() {
		var n int
		if err := db.QueryRowContext(ctx, table.Count).Scan(&n); err != nil {
			return nil, err
		}
		if n == 0 {
			missing = append(missing, table.Name)
		}
	}
	return missing, nil
}

// appliedVersion reads the version of the tables and refuses a table of versions with a gap.
func appliedVersion(ctx context.Context, db queryer, s dialect.Schema) (int, error) {
	rows, err := db.QueryContext(ctx, s.Versions)
	if err != nil {
		return 0, err
	}
	defer rows.Close() //nolint:errcheck // rows.Err tells
	at := 0
	for rows.Next() {
		var v int
		if err := rows.Scan(&v); err != nil {
			return 0, err
		}
		if v != at+1 {
			return 0, fmt.Errorf("%w: %s goes from version %d to %d", inbox.ErrSchema, s.Tables.Migrations, at, v)
		}
		at = v
	}
	return at, rows.Err()
}

// schemaOf gives the schema SQL of a validated config.
func schemaOf(config Config) dialect.Schema {
	d, _ := config.dialect()
	lock := engine.NewLockSpace(config.Schema, config.prefix(), "migrations").ID(inbox.StorageKey{})
	return d.NewSchema(config.Schema, config.prefix(), lock)
}

// named puts the inbox's name for a kind of fault in front of a database's own error.
func (b *backend) named(err error) error { return engine.Named(b.Fault(err), err) }
