package sqlinbox

import (
	"database/sql"
	"fmt"
	"math"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox/internal/dialect"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox/internal/engine"
)

// Dialect is the kind of database.
type Dialect string

// The databases.
const (
	PostgreSQL Dialect = "postgresql" // 14 and newer
	MySQL      Dialect = "mysql"      // MariaDB 10.6 and newer; MySQL 8, which nothing here was run on
	SQLite     Dialect = "sqlite"     // 3.42 and newer
)

// Config is how a [Store] keeps its memory. Only Dialect is required.
type Config struct {
	// Dialect is the kind of database. Required (pgxinbox sets it itself).
	Dialect Dialect

	// Schema is where the tables are. A letter or underscore and up to 39 more letters, digits or underscores. On
	// SQLite it must be empty. Defaults to PostgreSQL's current_schema(), or MySQL's DATABASE(), at the time of
	// construction.
	Schema string

	// TablePrefix is the name of the memory table, and the beginning of the others' names (…_horizons). The rule is
	// that of Schema. Defaults to "watermill_inbox".
	TablePrefix string

	// InitializeSchema runs [Migrate] at construction. Defaults to false: an application's role often may not.
	InitializeSchema bool

	// Isolation is the level of the transactions. At RepeatableRead and Serializable more messages meet a
	// serialization failure and are run again. Defaults to READ COMMITTED; SQLite has only its own (serializable). On
	// MySQL and MariaDB, whose own default is another, it costs a statement for each message unless the DSN sets it
	// (MariaDB: tx_isolation='READ-COMMITTED', MySQL: transaction_isolation).
	Isolation sql.IsolationLevel

	// InFlightWait is how long a copy waits for another one that is in flight, before it gives up with
	// inbox.ErrInFlight. No connection is held meanwhile, and the wait for a free connection of the pool is not counted
	// (the message's context bounds it). -1 gives up at once (SQLite: after 50 ms, since there the
	// writers of other messages are waited for too). Defaults to 5 seconds.
	InFlightWait time.Duration

	// TxRetries is how often a transaction is run again, with the handler, after a definite serialization failure or
	// deadlock. -1 is never. Defaults to 3.
	TxRetries int

	// IdleTimeout makes PostgreSQL end the transaction of a client that is silent for so long inside it
	// (idle_in_transaction_session_timeout, for this transaction only): a client that vanished without closing its
	// connection keeps its message from others until the server notices. It must be longer than any handler is silent
	// towards the database. PostgreSQL only. Defaults to 0: the server's setting.
	IdleTimeout time.Duration

	// CommitTimeout bounds a COMMIT or ROLLBACK, which do not obey the message's context. A COMMIT without an answer
	// by then is inbox.ErrCommitUnknown. Defaults to 10 seconds.
	CommitTimeout time.Duration

	// DoneTTL is how long a message is known to be handled without asking the database: copies that come in that time
	// cost no round trip. What is known is forgotten with every lost and every new connection; a fail-over or rewind of
	// the database that neither shows is bounded by this time, so wait it out between a fail-over and a rewind of a
	// broker. -1 asks the database every time. Defaults to 1 minute.
	DoneTTL time.Duration

	// DoneKeys is for how many messages that is known, the latest ones; each takes about 300 bytes. Defaults to 65,536.
	DoneKeys int

	// Logger gets warnings of Validate and, as Debug, transaction retries. Defaults to watermill.NopLogger.
	Logger watermill.LoggerAdapter

	mariaDB       bool // what lookAtMySQL found
	readCommitted bool
}

// Validate checks the values without touching the database and gives an [*inbox.ConfigError] for the first bad one.
func (c Config) Validate() error {
	if _, err := c.dialect(); err != nil {
		return err
	}
	if c.Schema != "" && !dialect.ValidName(c.Schema) {
		return bad("Schema", c.Schema, dialect.NameRule)
	}
	if c.Schema != "" && c.Dialect == SQLite {
		return bad("Schema", c.Schema, "must be empty: SQLite has no schemas")
	}
	if c.TablePrefix != "" && !dialect.ValidName(c.TablePrefix) {
		return bad("TablePrefix", c.TablePrefix, dialect.NameRule)
	}
	switch c.Isolation {
	case sql.LevelDefault, sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable:
		if c.Dialect == SQLite && c.Isolation != sql.LevelDefault && c.Isolation != sql.LevelSerializable {
			return bad("Isolation", c.Isolation, "SQLite is always serializable: leave it unset")
		}
	default:
		return bad("Isolation", c.Isolation, "must be READ COMMITTED, REPEATABLE READ or SERIALIZABLE")
	}
	switch {
	case c.InFlightWait < -1:
		return bad("InFlightWait", c.InFlightWait, "must be a time, 0 for the default or -1 for none")
	case c.TxRetries < -1:
		return bad("TxRetries", c.TxRetries, "must be a number, 0 for the default or -1 for none")
	case c.IdleTimeout < 0 || c.IdleTimeout%time.Millisecond != 0 || c.IdleTimeout.Milliseconds() > math.MaxInt32:
		return bad("IdleTimeout", c.IdleTimeout, "must be whole milliseconds, 24 days at most, or 0 for the server's setting")
	case c.DoneTTL < -1:
		return bad("DoneTTL", c.DoneTTL, "must be a time, 0 for the default or -1 for none")
	case c.DoneKeys < 0:
		return bad("DoneKeys", c.DoneKeys, "must be a number, or 0 for the default")
	case c.CommitTimeout < 0:
		return bad("CommitTimeout", c.CommitTimeout, "must be a time, or 0 for the default")
	}
	return nil
}

func bad(field string, value any, reason string) error {
	return &inbox.ConfigError{Field: "sqlinbox.Config." + field, Value: value, Reason: reason}
}

func (c Config) dialect() (dialect.Dialect, error) {
	switch c.Dialect {
	case PostgreSQL:
		return dialect.PostgreSQL(), nil
	case MySQL:
		if c.mariaDB {
			return dialect.MariaDB(), nil
		}
		return dialect.MySQL(), nil
	case SQLite:
		return dialect.SQLite(), nil
	}
	return dialect.Dialect{}, bad("Dialect", c.Dialect, fmt.Sprintf("must be %q, %q or %q", PostgreSQL, MySQL, SQLite))
}

func (c Config) prefix() string {
	if c.TablePrefix == "" {
		return engine.DefaultTablePrefix
	}
	return c.TablePrefix
}

func (c Config) settings() engine.Settings {
	return engine.Settings{
		InFlightWait:  c.InFlightWait,
		TxRetries:     c.TxRetries,
		CommitTimeout: c.CommitTimeout,
		DoneTTL:       c.DoneTTL,
		DoneKeys:      c.DoneKeys,
		Logger:        c.Logger,

		LockSpace:          engine.NewLockSpace(c.Schema, c.prefix(), "inbox"),
		OperationLockSpace: engine.NewLockSpace(c.Schema, c.prefix(), "operations"),
		LaneSpace:          engine.NewLockSpace(c.Schema, c.prefix(), "lanes"),
	}
}

func (c Config) logger() watermill.LoggerAdapter {
	if c.Logger == nil {
		return watermill.NopLogger{}
	}
	return c.Logger
}
