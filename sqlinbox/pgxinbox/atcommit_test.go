package pgxinbox_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox/pgxinbox"
	"github.com/watermill-contrib/watermill-inbox/tests/services"
)

// service is an inbox on a schema of its own with a table for effects.
type service struct {
	pool *pgxpool.Pool
	in   *inbox.Inbox
}

func newService(t *testing.T) *service {
	t.Helper()
	ctx := context.Background()
	config, err := pgxpool.ParseConfig(services.PostgreSQL(t))
	require.NoError(t, err)
	schema := "t_" + strings.ReplaceAll(inbox.NewUUID(), "-", "")
	config.ConnConfig.RuntimeParams["search_path"] = schema
	pool, err := pgxpool.NewWithConfig(ctx, config)
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		_, _ = pool.Exec(ctx, "DROP SCHEMA "+schema+" CASCADE")
		pool.Close()
	})
	_, err = pool.Exec(ctx, `CREATE SCHEMA `+schema)
	require.NoError(t, err)
	_, err = pool.Exec(ctx, `CREATE TABLE effects (number bigserial, name text NOT NULL)`)
	require.NoError(t, err)

	store, err := pgxinbox.NewStore(ctx, pool, pgxinbox.Config{InitializeSchema: true})
	require.NoError(t, err)
	in, err := inbox.New(store, inbox.Config{Consumer: func(*message.Message) string { return "charge" }})
	require.NoError(t, err)
	return &service{pool: pool, in: in}
}

// handle gives one message to the handler.
func (s *service) handle(handler func(ctx context.Context, tx pgx.Tx) error) error {
	msg := message.NewMessage(inbox.NewUUID(), nil)
	return s.redeliver(msg, handler)
}

func (s *service) redeliver(msg *message.Message, handler func(ctx context.Context, tx pgx.Tx) error) error {
	_, err := s.in.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		tx, err := pgxinbox.TxFromContext(msg.Context())
		if err != nil {
			return nil, err
		}
		return nil, handler(msg.Context(), tx)
	})(msg)
	return err
}

// effects are the committed ones in the order of their inserts.
func (s *service) effects(t *testing.T) []string {
	t.Helper()
	rows, err := s.pool.Query(t.Context(), `SELECT name FROM effects ORDER BY number`)
	require.NoError(t, err)
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	return names
}

const insert = `INSERT INTO effects (name) VALUES ($1)`

func TestExecAtCommit_Order(t *testing.T) {
	t.Parallel()
	s := newService(t)
	require.NoError(t, s.handle(func(ctx context.Context, tx pgx.Tx) error {
		for _, name := range []string{"at commit 1", "at commit 2", "at commit 3"} {
			require.NoError(t, pgxinbox.ExecAtCommit(ctx, insert, name))
		}
		savepoint, err := tx.Begin(ctx)
		require.NoError(t, err)
		require.NoError(t, pgxinbox.ExecAtCommit(ctx, insert, "behind a savepoint"))
		require.NoError(t, savepoint.Rollback(ctx))
		_, err = tx.Exec(ctx, insert, "at once")
		return err
	}))
	require.Equal(t, []string{"at once", "at commit 1", "at commit 2", "at commit 3", "behind a savepoint"}, s.effects(t))
}

func TestExecAtCommit_FailureFailsTheCommit(t *testing.T) {
	t.Parallel()
	s := newService(t)
	msg := message.NewMessage(inbox.NewUUID(), nil)
	err := s.redeliver(msg.Copy(), func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, insert, "at once")
		require.NoError(t, err)
		require.NoError(t, pgxinbox.ExecAtCommit(ctx, insert, "before the failure"))
		require.NoError(t, pgxinbox.ExecAtCommit(ctx, insert, nil)) // NOT NULL
		return pgxinbox.ExecAtCommit(ctx, insert, "behind the failure")
	})
	var notNull *pgconn.PgError
	require.ErrorAs(t, err, &notNull)
	require.Equal(t, "23502", notNull.Code)
	var inboxErr *inbox.Error
	require.ErrorAs(t, err, &inboxErr)
	require.Equal(t, inbox.PhaseCommit, inboxErr.Phase)
	require.Empty(t, s.effects(t))

	// The message was not remembered, and the connection is as good as new.
	require.NoError(t, s.redeliver(msg.Copy(), func(ctx context.Context, _ pgx.Tx) error {
		return pgxinbox.ExecAtCommit(ctx, insert, "redelivered")
	}))
	require.Equal(t, []string{"redelivered"}, s.effects(t))
	require.Zero(t, s.pool.Stat().AcquiredConns())
}

func TestExecAtCommit_FailedHandlerSendsNothing(t *testing.T) {
	t.Parallel()
	s := newService(t)
	require.ErrorIs(t, s.handle(func(ctx context.Context, _ pgx.Tx) error {
		require.NoError(t, pgxinbox.ExecAtCommit(ctx, insert, "kept"))
		return context.DeadlineExceeded
	}), context.DeadlineExceeded)
	require.Empty(t, s.effects(t))
}

func TestExecAtCommit_SwallowedErrorAborts(t *testing.T) {
	t.Parallel()
	s := newService(t)
	for name, atCommit := range map[string]bool{"with statements kept": true, "without": false} {
		err := s.handle(func(ctx context.Context, tx pgx.Tx) error {
			if atCommit {
				require.NoError(t, pgxinbox.ExecAtCommit(ctx, insert, "kept"))
			}
			_, err := tx.Exec(ctx, insert, nil)
			require.Error(t, err)
			return nil
		})
		require.ErrorIs(t, err, inbox.ErrTxAborted, name)
	}
	require.Empty(t, s.effects(t))
}

func TestExecAtCommit_OutsideAHandler(t *testing.T) {
	t.Parallel()
	s := newService(t)
	require.ErrorIs(t, pgxinbox.ExecAtCommit(t.Context(), insert, "outside"), inbox.ErrNoTx)
	var inside context.Context
	require.NoError(t, s.handle(func(ctx context.Context, _ pgx.Tx) error {
		inside = ctx
		return nil
	}))
	require.ErrorIs(t, pgxinbox.ExecAtCommit(inside, insert, "too late"), inbox.ErrNoTx)
	require.Empty(t, s.effects(t))
}

func TestExecAtCommit_MissingTableIsTheHandlers(t *testing.T) {
	t.Parallel()
	s := newService(t)
	err := s.handle(func(ctx context.Context, _ pgx.Tx) error {
		return pgxinbox.ExecAtCommit(ctx, `INSERT INTO watermill_nosuch VALUES (1)`)
	})
	require.ErrorContains(t, err, "watermill_nosuch")
	require.NotErrorIs(t, err, inbox.ErrSchema)
}
