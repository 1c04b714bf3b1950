package pgxinbox

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox/internal/dialect"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox/internal/engine"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox/internal/pgclaim"
)

// Config is how a [Store] keeps its memory; the zero value works. Dialect may be left empty.
type Config = sqlinbox.Config

// Store is a memory in PostgreSQL over a pgx pool. It is safe for concurrent use and has nothing to close; the pool
// stays the caller's. A message takes one connection from its claim to its commit.
type Store struct {
	*sqlinbox.Queue
	engine *engine.Engine
}

var _ inbox.AckedStore = (*Store)(nil)

// NewStore gives a store on pool, whose tables must be there (see [Migrate]) unless Config.InitializeSchema is set. It
// asks the database, so it fails with inbox.ErrSchema, inbox.ErrReadOnly or the database's own error where that cannot
// serve, and with an [*inbox.ConfigError] for a bad value.
func NewStore(ctx context.Context, pool *pgxpool.Pool, config Config) (*Store, error) {
	config, err := prepare(ctx, pool, config)
	if err != nil {
		return nil, err
	}
	if config.InitializeSchema {
		if err := Migrate(ctx, pool, config); err != nil {
			return nil, err
		}
	}
	if err := Validate(ctx, pool, config); err != nil {
		return nil, err
	}
	prefix := config.TablePrefix
	if prefix == "" {
		prefix = engine.DefaultTablePrefix
	}
	d := dialect.PostgreSQL()
	b := &backend{
		pool: pool,
		claimer: pgclaim.Claimer{
			SQL:         d.Statements(dialect.NewNames(config.Schema, prefix, d.Quote)),
			IdleTimeout: dialect.IdleTimeout(config.IdleTimeout),
		},
		queue:   d.Queue(dialect.NewNames(config.Schema, prefix, d.Quote)),
		options: pgx.TxOptions{IsoLevel: isoLevel(config.Isolation)},
	}
	e := engine.New(b, engine.Settings{
		InFlightWait:  config.InFlightWait,
		TxRetries:     config.TxRetries,
		CommitTimeout: config.CommitTimeout,
		DoneTTL:       config.DoneTTL,
		DoneKeys:      config.DoneKeys,
		Logger:        config.Logger,

		LockSpace:          engine.NewLockSpace(config.Schema, prefix, "inbox"),
		OperationLockSpace: engine.NewLockSpace(config.Schema, prefix, "operations"),
		LaneSpace:          engine.NewLockSpace(config.Schema, prefix, "lanes"),
	})
	b.met = e.ConnectionMet
	s := &Store{engine: e}
	s.Queue = sqlinbox.NewQueue(stdlib.OpenDBFromPool(pool), config, e, s)
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

// Migrate is [sqlinbox.Migrate] on a pgx pool.
func Migrate(ctx context.Context, pool *pgxpool.Pool, config Config) error {
	return withDB(ctx, pool, config, sqlinbox.Migrate)
}

// Validate is [sqlinbox.Validate] on a pgx pool.
func Validate(ctx context.Context, pool *pgxpool.Pool, config Config) error {
	return withDB(ctx, pool, config, sqlinbox.Validate)
}

func withDB(ctx context.Context, pool *pgxpool.Pool, config Config, fn func(context.Context, *sql.DB, Config) error) error {
	config, err := prepare(ctx, pool, config)
	if err != nil {
		return err
	}
	db := stdlib.OpenDBFromPool(pool)
	defer db.Close() //nolint:errcheck // the pool stays open, nothing else is in it
	return fn(ctx, db, config)
}

// prepare checks config and fills in the dialect and the schema that an empty one stands for.
func prepare(ctx context.Context, pool *pgxpool.Pool, config Config) (Config, error) {
	if pool == nil {
		return config, &inbox.ConfigError{Field: "pool", Value: nil, Reason: "must not be nil: check the error of pgxpool.New"}
	}
	if config.Dialect == "" {
		config.Dialect = sqlinbox.PostgreSQL
	}
	if config.Dialect != sqlinbox.PostgreSQL {
		return config, &inbox.ConfigError{Field: "pgxinbox.Config.Dialect", Value: config.Dialect, Reason: "must be empty or PostgreSQL"}
	}
	if err := config.Validate(); err != nil || config.Schema != "" {
		return config, err
	}
	var schema *string
	if err := pool.QueryRow(ctx, "SELECT current_schema()").Scan(&schema); err != nil {
		return config, fmt.Errorf("inbox: connect: %w", err)
	}
	if schema == nil {
		schema = new(string)
	}
	if !dialect.ValidName(*schema) {
		return config, &inbox.ConfigError{Field: "pgxinbox.Config.Schema", Value: *schema, Reason: "is what the search_path leads to; set Schema: it " + dialect.NameRule}
	}
	config.Schema = *schema
	return config, nil
}

func isoLevel(level sql.IsolationLevel) pgx.TxIsoLevel {
	switch level {
	case sql.LevelSerializable:
		return pgx.Serializable
	case sql.LevelRepeatableRead:
		return pgx.RepeatableRead
	}
	return pgx.ReadCommitted
}
