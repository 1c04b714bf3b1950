package sqlinbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox/internal/dialect"
)

// Migrate brings the tables of config up to the version that this program needs, all of it in one transaction under a
// lock of that transaction: any number of processes may call it at once, and one that is killed leaves nothing behind.
// It creates Config.Schema if that is missing. Tables of a newer version are left alone.
//
// The role needs the right to create tables. Others can run the SQL of [MigrationSQL] instead.
func Migrate(ctx context.Context, db *sql.DB, config Config) error {
	return migrate(ctx, db, config, func(m *migrator) error { return m.up(ctx) })
}

// MigrateDown takes the tables back to an earlier version, 0 for none at all. What they hold is lost with them: messages
// that come again are then handled again.
func MigrateDown(ctx context.Context, db *sql.DB, config Config, version int) error {
	if version < 0 {
		return &inbox.ConfigError{Field: "version", Value: version, Reason: "must be 0 or an earlier version"}
	}
	return migrate(ctx, db, config, func(m *migrator) error { return m.down(ctx, version) })
}

// MigrationSQL gives the SQL of all migrations, up and down, for people with a migration tool of their own. With an
// empty Config.Schema the tables are not qualified.
func MigrationSQL(config Config) (up, down string, err error) {
	if err := config.Validate(); err != nil {
		return "", "", err
	}
	s := schemaOf(config)
	statements := []string{s.VersionsTable}
	if s.CreateSchema != "" {
		statements = []string{strings.Replace(s.CreateSchema, "CREATE SCHEMA", "CREATE SCHEMA IF NOT EXISTS", 1), s.VersionsTable}
	}
	var undo []string
	for v := 1; v <= s.Latest(); v++ {
		statements = append(statements, s.Up(v)...)
		undo = append(s.Down(v), undo...)
	}
	undo = append(undo, s.DropVersions())
	return script(statements), script(undo), nil
}

func script(statements []string) string { return strings.Join(statements, ";\n\n") + ";\n" }

// migrate calls fn inside a transaction of its own that holds the lock of migrations.
func migrate(ctx context.Context, db *sql.DB, config Config, fn func(*migrator) error) error {
	config, err := prepare(ctx, db, config)
	if err != nil {
		return err
	}
	b := newBackend(db, config)
	for {
		err := b.migrateOnce(ctx, schemaOf(config), fn)
		if !errors.Is(err, errMigrationBusy) {
			return err
		}
		// SQLite answers busy at once when its file is being switched to another journal, whatever the busy timeout.
		select {
		case <-ctx.Done():
			return fmt.Errorf("inbox: migrate: %w: %w", ctx.Err(), err)
		case <-time.After(5*time.Millisecond + rand.N(20*time.Millisecond)):
		}
	}
}

var errMigrationBusy = errors.New("another process is using the database")

func (b *backend) migrateOnce(ctx context.Context, s dialect.Schema, fn func(*migrator) error) (err error) {
	conn, err := b.db.Conn(ctx)
	if err != nil {
		return b.migrationError(ctx, err)
	}
	defer conn.Close() //nolint:errcheck // the connection only goes back
	m := &migrator{conn: conn, schema: s}
	defer func() {
		// Detached from ctx: a cancelled migration must not leave its transaction or its lock in the pool.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		if err != nil && s.Begin != "" {
			_ = m.exec(ctx, "ROLLBACK")
		}
		_ = m.exec(ctx, s.Unlock)
	}()
	// A BEGIN that was cut off may have been done: the defer is there before it.
	if err := m.exec(ctx, s.Begin); err != nil {
		return b.migrationError(ctx, err)
	}
	if err := m.exec(ctx, s.Lock); err != nil {
		return b.migrationError(ctx, err)
	}
	if err := fn(m); err != nil {
		return b.migrationError(ctx, err)
	}
	if s.Begin == "" {
		return nil
	}
	if err := m.exec(ctx, "COMMIT"); err != nil {
		return b.migrationError(ctx, err)
	}
	return nil
}

func (b *backend) migrationError(ctx context.Context, err error) error {
	if ctxErr := ctx.Err(); ctxErr != nil && !errors.Is(err, ctxErr) {
		err = fmt.Errorf("%w (%w)", err, ctxErr) // the driver may only say that the connection is gone
	}
	if code := sqliteCode(err); code == sqliteBusy || code == sqliteLocked {
		return fmt.Errorf("%w: %w", errMigrationBusy, err)
	}
	return fmt.Errorf("inbox: migrate: %w", b.named(err))
}

// migrator runs the steps on one connection, inside its transaction.
type migrator struct {
	conn   *sql.Conn
	schema dialect.Schema
}

func (m *migrator) up(ctx context.Context) error {
	if m.schema.HasSchema != "" {
		var n int
		if err := m.conn.QueryRowContext(ctx, m.schema.HasSchema).Scan(&n); err != nil {
			return err
		}
		if n == 0 {
			if err := m.exec(ctx, m.schema.CreateSchema); err != nil {
				return err
			}
		}
	}
	if err := m.exec(ctx, m.schema.VersionsTable); err != nil {
		return err
	}
	at, err := m.version(ctx)
	if err != nil {
		return err
	}
	for v := at + 1; v <= m.schema.Latest(); v++ {
		if err := m.all(ctx, m.schema.Up(v)); err != nil {
			return fmt.Errorf("up to version %d: %w", v, err)
		}
	}
	return nil
}

func (m *migrator) down(ctx context.Context, version int) error {
	if err := m.exec(ctx, m.schema.VersionsTable); err != nil { // nothing was ever migrated: nothing to do
		return err
	}
	at, err := m.version(ctx)
	if err != nil {
		return err
	}
	if at > m.schema.Latest() {
		return fmt.Errorf("%w: version %d is newer than this program, which knows %d", inbox.ErrSchema, at, m.schema.Latest())
	}
	for v := at; v > version; v-- {
		if err := m.all(ctx, m.schema.Down(v)); err != nil {
			return fmt.Errorf("down from version %d: %w", v, err)
		}
	}
	if version == 0 {
		return m.exec(ctx, m.schema.DropVersions())
	}
	return nil
}

// version gives the applied version, 0 for none.
func (m *migrator) version(ctx context.Context) (int, error) {
	return appliedVersion(ctx, m.conn, m.schema)
}

func (m *migrator) all(ctx context.Context, statements []string) error {
	for _, sql := range statements {
		if err := m.exec(ctx, sql); err != nil {
			return err
		}
	}
	return nil
}

// exec executes a statement; an empty one is not needed on the database.
func (m *migrator) exec(ctx context.Context, sql string) error {
	if sql == "" {
		return nil
	}
	_, err := m.conn.ExecContext(ctx, sql)
	return err
}
