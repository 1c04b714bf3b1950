package sqlinbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"github.com/go-sql-driver/mysql"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox/internal/engine"
)

// Error numbers of MySQL and MariaDB (https://mariadb.com/kb/en/mariadb-error-code-reference/).
const (
	mysqlChanged     = 1020 // MariaDB with innodb_snapshot_isolation, the default from 11.6.2 on
	mysqlDuplicate   = 1062
	mysqlLockTimeout = 1205
	mysqlDeadlock    = 1213
	mysqlNoWait      = 3572 // MySQL's answer to NOWAIT
)

// mysqlCode gives the number of a MySQL error, 0 for another error.
func mysqlCode(err error) uint16 {
	var coded *mysql.MySQLError
	if !errors.As(err, &coded) {
		return 0
	}
	return coded.Number
}

func mysqlFault(code uint16) engine.Fault {
	switch code {
	case mysqlChanged, mysqlLockTimeout, mysqlDeadlock:
		return engine.FaultSerialization
	case 1049, 1054, 1146: // no such database, column, table
		return engine.FaultSchema
	case 1290, 1792, 1836: // read_only, a read-only transaction, a read-only server
		return engine.FaultReadOnly
	case 1053, 1927: // shutdown, connection killed
		return engine.FaultLost
	case 1021, 1040, 1041, 1114, 1203, 1226: // disk full, too many connections, out of memory, table full, limits
		return engine.FaultUnavailable
	case 1526: // no partition for the value
		return engine.FaultNoPartition
	}
	return engine.FaultOther
}

// claimBusy turns the answer of a claim that would have had to wait into busy. In a handler the same code means
// something else: its own lock wait was too long, and the transaction is run again.
func claimBusy(err error) error {
	if code := mysqlCode(err); code == mysqlLockTimeout || code == mysqlNoWait {
		return fmt.Errorf("%w: %w", errWriterBusy, err)
	}
	return err
}

// lookAtMySQL finds out which of the two databases it is, its default database and isolation level.
func lookAtMySQL(ctx context.Context, db *sql.DB, config Config) (Config, error) {
	var version string
	var schema sql.NullString
	if err := db.QueryRowContext(ctx, "SELECT VERSION(), DATABASE()").Scan(&version, &schema); err != nil {
		return config, fmt.Errorf("inbox: connect: %w", err)
	}
	config.mariaDB = strings.Contains(strings.ToLower(version), "mariadb")
	if config.Schema == "" {
		config.Schema = schema.String
	}
	if config.Schema == "" {
		return config, bad("Schema", "", "must be set where the DSN names no database")
	}
	// A variable of the session: the DSN may have set it, and spares a statement for each message then.
	var level string
	variable := map[bool]string{true: "@@tx_isolation", false: "@@transaction_isolation"}[config.mariaDB]
	if err := db.QueryRowContext(ctx, "SELECT "+variable).Scan(&level); err != nil {
		return config, fmt.Errorf("inbox: connect: %w", err)
	}
	config.readCommitted = level == "READ-COMMITTED"
	return config, nil
}

// mysqlWritable finds a read-only server, and on MySQL the wait that its claim cannot do without.
func (b *backend) mysqlWritable(ctx context.Context) error {
	var readOnly, session bool
	var lockWait int
	variable := map[bool]string{true: "@@tx_read_only", false: "@@transaction_read_only"}[b.config.mariaDB]
	err := b.db.QueryRowContext(ctx, "SELECT @@global.read_only, "+variable+", @@innodb_lock_wait_timeout").Scan(&readOnly, &session, &lockWait)
	switch {
	case err != nil:
		return err
	case readOnly:
		return fmt.Errorf("%w: read_only is on; connect to the primary", inbox.ErrReadOnly)
	case session:
		return fmt.Errorf("%w: %s is on", inbox.ErrReadOnly, variable)
	}
	if !b.config.mariaDB && lockWait > 1 {
		return bad("DSN", fmt.Sprintf("innodb_lock_wait_timeout=%d", lockWait), "must be 1 on MySQL: add innodb_lock_wait_timeout=1 to the DSN")
	}
	return nil
}
