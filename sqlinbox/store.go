package sqlinbox

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox/internal/dialect"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox/internal/engine"
)

// Store is a memory over database/sql. It is safe for concurrent use and has nothing to close; the *sql.DB stays the
// caller's.
type Store struct {
	*Queue
	engine *engine.Engine
}

var _ inbox.AckedStore = (*Store)(nil)

// NewStore gives a store on db, whose tables must be there (see [Migrate]) unless Config.InitializeSchema is set. It
// asks the database, so it fails with inbox.ErrSchema, inbox.ErrReadOnly or the database's own error where that cannot
// serve, and with an [*inbox.ConfigError] for a bad value.
func NewStore(ctx context.Context, db *sql.DB, config Config) (*Store, error) {
	config, err := prepare(ctx, db, config)
	if err != nil {
		return nil, err
	}
	if config.InitializeSchema {
		if err := Migrate(ctx, db, config); err != nil {
			return nil, err
		}
	}
	if err := Validate(ctx, db, config); err != nil {
		return nil, err
	}
	b := newBackend(db, config)
	e := engine.New(b, config.settings())
	b.connections.met = e.ConnectionMet
	s := &Store{engine: e}
	s.Queue = newQueue(b, e, s)
	return s, nil
}

// Process commits the work of fn at most once per d.Key; see [inbox.Store]. The middleware calls it.
func (s *Store) Process(ctx context.Context, d inbox.Delivery, fn inbox.Func) (inbox.Result, error) {
	return s.engine.Process(ctx, d, fn)
}

// InFlight tells how many messages are being handled through this store in this process, and for how long the oldest of
// them: for a gauge.
func (s *Store) InFlight() (messages int, oldest time.Duration) { return s.engine.InFlight() }

// Acked deletes the messages that were recorded for d, a little later and together with others. The middleware calls it.
func (s *Store) Acked(d inbox.Delivery) { s.engine.Acked(d) }

// prepare checks config and fills in the schema that an empty one stands for.
func prepare(ctx context.Context, db *sql.DB, config Config) (Config, error) {
	if db == nil {
		return config, &inbox.ConfigError{Field: "db", Value: nil, Reason: "must not be nil: check the error of sql.Open"}
	}
	if err := config.Validate(); err != nil {
		return config, err
	}
	if config.Dialect == MySQL {
		return lookAtMySQL(ctx, db, config)
	}
	if config.Dialect != PostgreSQL || config.Schema != "" {
		return config, nil
	}
	var schema sql.NullString
	if err := db.QueryRowContext(ctx, "SELECT current_schema()").Scan(&schema); err != nil {
		return config, fmt.Errorf("inbox: connect: %w", err)
	}
	if !dialect.ValidName(schema.String) {
		return config, bad("Schema", schema.String, "is what the search_path leads to; set Schema: it "+dialect.NameRule)
	}
	config.Schema = schema.String
	return config, nil
}
