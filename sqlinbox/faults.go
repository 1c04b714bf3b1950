package sqlinbox

import (
	"context"
	"errors"
	"fmt"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox/internal/engine"
)

// errWriterBusy stands for SQLite's own busy answer where the wait for the writer was cut short here.
var errWriterBusy = errors.New("the database is locked by another writer")

// errNoSuchTable marks an SQLite error whose cause was looked up, see missingTable.
var errNoSuchTable = fmt.Errorf("%w: run sqlinbox.Migrate or set Config.InitializeSchema", inbox.ErrSchema)

// SQLite's primary result codes (https://www.sqlite.org/rescode.html).
const (
	sqliteError    = 1
	sqliteBusy     = 5
	sqliteLocked   = 6
	sqliteReadOnly = 8
	sqliteIOErr    = 10
	sqliteFull     = 13
	sqliteCantOpen = 14
)

// Fault is engine.Backend's Fault. It knows errors by code: SQLSTATE (pgx and lib/pq have that method), SQLite's and
// MySQL's.
func (b *backend) Fault(err error) engine.Fault {
	if errors.Is(err, errWriterBusy) {
		return engine.FaultBusy
	}
	if errors.Is(err, inbox.ErrSchema) {
		return engine.FaultSchema
	}
	if state := sqlState(err); state != "" {
		return engine.SQLStateFault(state)
	}
	if code := mysqlCode(err); code != 0 {
		return mysqlFault(code)
	}
	switch code := sqliteCode(err); code {
	case 0:
		return engine.FaultNone
	case sqliteBusy, sqliteLocked:
		return engine.FaultBusy
	case sqliteReadOnly:
		return engine.FaultReadOnly
	case sqliteIOErr, sqliteFull, sqliteCantOpen:
		return engine.FaultUnavailable
	}
	return engine.FaultOther
}

// sqlState gives the SQLSTATE of an error, empty for another error.
func sqlState(err error) string {
	var state interface{ SQLState() string }
	if !errors.As(err, &state) {
		return ""
	}
	return state.SQLState()
}

// sqliteCode gives the primary result code of an SQLite error, 0 for another error.
func sqliteCode(err error) int {
	var coded interface{ Code() int }
	if !errors.As(err, &coded) {
		return 0
	}
	return coded.Code() & 0xff
}

// missingTable finds out by looking whether err is about a missing table, where the code alone does not tell.
func (b *backend) missingTable(ctx context.Context, err error) error {
	return b.missingTableOn(ctx, b.db, err)
}

// missingTableOn looks from inside a transaction, which may have the pool's only connection.
func (b *backend) missingTableOn(ctx context.Context, on queryer, err error) error {
	if errors.Is(err, errNoSuchTable) {
		return err
	}
	if b.Fault(err) == engine.FaultSchema {
		return fmt.Errorf("%w: %w", errNoSuchTable, err)
	}
	if sqliteCode(err) != sqliteError {
		return err
	}
	if missing, lookErr := missingTables(ctx, on, b.schema); lookErr == nil && len(missing) > 0 {
		return fmt.Errorf("%w: %w", errNoSuchTable, err)
	}
	return err
}
