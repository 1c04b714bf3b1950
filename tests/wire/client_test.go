package wire

import (
	"context"
	"database/sql"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox/pgxinbox"
)

const insertEffect = "INSERT INTO effects (message_id, line) VALUES ($1, $2)"

// client is a pool of one connection with a store on it, and the same work done with and without the inbox.
type client struct {
	store inbox.Store // without done keys: it asks the database for every copy
	// open makes another store on the pool.
	open func(config sqlinbox.Config) (inbox.Store, error)
	// bare does the handler's work in a transaction written by hand: begin, the inserts, commit.
	bare func(ctx context.Context, id string, inserts int) error
	// work is what a handler does: the inserts in the transaction that ctx carries.
	work func(ctx context.Context, id string, inserts int) error
}

// driver is one way of using PostgreSQL.
type driver struct {
	name string
	open func(t *testing.T, d *database) client
	// extra is how many round trips a first delivery costs more than the bare transaction, duplicate how many a copy
	// costs at all.
	extra, duplicate int
}

func drivers() []driver {
	return []driver{
		{name: "pgx", open: openPgx, extra: 0, duplicate: 2},
		// Without pipelining the claim is a round trip, and so are begin, rollback and the read of a duplicate.
		{name: "database-sql", open: openSQL, extra: 1, duplicate: 4},
		{name: "OpenDB", open: openDB, extra: 0, duplicate: 2},
	}
}

// openPgx opens a pgx pool without its liveness check, a ping of its own after a second of idling.
func openPgx(t *testing.T, d *database) client {
	t.Helper()
	config, err := pgxpool.ParseConfig("")
	require.NoError(t, err)
	config.ConnConfig = d.config.Copy()
	config.MaxConns = 1
	config.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return false }
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	open := func(config sqlinbox.Config) (inbox.Store, error) { return pgxinbox.NewStore(t.Context(), pool, config) }
	store, err := open(sqlinbox.Config{InitializeSchema: true, DoneTTL: -1})
	require.NoError(t, err)

	insert := func(ctx context.Context, tx pgx.Tx, id string, inserts int) error {
		for line := range inserts {
			if _, err := tx.Exec(ctx, insertEffect, id, line); err != nil {
				return err
			}
		}
		return nil
	}
	return client{
		store: store, open: open,
		bare: func(ctx context.Context, id string, inserts int) error {
			return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return insert(ctx, tx, id, inserts) })
		},
		work: func(ctx context.Context, id string, inserts int) error {
			tx, err := pgxinbox.TxFromContext(ctx)
			if err != nil {
				return err
			}
			return insert(ctx, tx, id, inserts)
		},
	}
}

// openSQL opens a database/sql pool on pgx.
func openSQL(t *testing.T, d *database) client {
	t.Helper()
	return overSQL(t, d, stdlib.OpenDB)
}

// openDB opens the one that sends the claim with BEGIN.
func openDB(t *testing.T, d *database) client {
	t.Helper()
	return overSQL(t, d, pgxinbox.OpenDB)
}

// overSQL opens a pool without its liveness check too.
func overSQL(t *testing.T, d *database, open func(pgx.ConnConfig, ...stdlib.OptionOpenDB) *sql.DB) client {
	t.Helper()
	db := open(*d.config.Copy(), stdlib.OptionShouldPing(func(context.Context, stdlib.ShouldPingParams) bool { return false }))
	db.SetMaxOpenConns(1)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	newStore := func(config sqlinbox.Config) (inbox.Store, error) {
		config.Dialect = sqlinbox.PostgreSQL
		return sqlinbox.NewStore(t.Context(), db, config)
	}
	store, err := newStore(sqlinbox.Config{InitializeSchema: true, DoneTTL: -1})
	require.NoError(t, err)

	insert := func(ctx context.Context, tx *sql.Tx, id string, inserts int) error {
		for line := range inserts {
			if _, err := tx.ExecContext(ctx, insertEffect, id, line); err != nil {
				return err
			}
		}
		return nil
	}
	return client{
		store: store, open: newStore,
		bare: func(ctx context.Context, id string, inserts int) error {
			tx, err := db.BeginTx(ctx, nil)
			if err != nil {
				return err
			}
			defer tx.Rollback() //nolint:errcheck // after Commit it does nothing
			if err := insert(ctx, tx, id, inserts); err != nil {
				return err
			}
			return tx.Commit()
		},
		work: func(ctx context.Context, id string, inserts int) error {
			tx, err := sqlinbox.TxFromContext(ctx)
			if err != nil {
				return err
			}
			return insert(ctx, tx, id, inserts)
		},
	}
}

// receiver is a handler behind the inbox, called as a router would.
type receiver struct {
	handle   message.HandlerFunc
	outcomes []inbox.Outcome
}

// receive puts a handler with so many inserts behind the inbox.
func (c client) receive(t *testing.T, inserts int) *receiver {
	t.Helper()
	r := &receiver{}
	in, err := inbox.New(c.store, inbox.Config{
		Consumer: func(*message.Message) string { return "billing/charge" },
		Observer: func(_ context.Context, e inbox.Event) { r.outcomes = append(r.outcomes, e.Outcome) },
	})
	require.NoError(t, err)
	r.handle = in.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		return nil, c.work(msg.Context(), msg.UUID, inserts)
	})
	return r
}

// deliver delivers a message, which must be acked with the wanted outcome.
func (r *receiver) deliver(t *testing.T, id string, want inbox.Outcome) {
	t.Helper()
	msg := message.NewMessage(id, []byte(`{"order_id":42}`))
	msg.SetContext(t.Context())
	_, err := r.handle(msg)
	require.NoError(t, err)
	require.Equal(t, want, r.outcomes[len(r.outcomes)-1])
}
