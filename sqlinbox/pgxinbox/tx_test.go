package pgxinbox_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox/pgxinbox"
	"github.com/watermill-contrib/watermill-inbox/tests/services"
)

// newInbox gives an inbox for the consumer "c" on a pool of one connection, in a schema of its own.
func newInbox(t *testing.T) (*inbox.Inbox, *pgxpool.Pool) {
	t.Helper()
	ctx := context.Background()
	schema := "t_" + strings.ReplaceAll(inbox.NewUUID(), "-", "")
	config, err := pgxpool.ParseConfig(services.PostgreSQL(t))
	require.NoError(t, err)
	config.MaxConns = 1
	config.ConnConfig.RuntimeParams["search_path"] = schema
	pool, err := pgxpool.NewWithConfig(ctx, config)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	_, err = pool.Exec(ctx, fmt.Sprintf("CREATE SCHEMA %s; CREATE TABLE %[1]s.effects (name text)", schema))
	require.NoError(t, err)
	t.Cleanup(func() { _, _ = pool.Exec(ctx, "DROP SCHEMA "+schema+" CASCADE") })
	store, err := pgxinbox.NewStore(ctx, pool, pgxinbox.Config{InitializeSchema: true})
	require.NoError(t, err)
	in, err := inbox.New(store, inbox.Config{Consumer: func(*message.Message) string { return "c" }})
	require.NoError(t, err)
	return in, pool
}

// A handler that forgets to close its rows must not look like a lost connection, or its poison message would stay in
// the broker for ever; and its COMMIT was never sent, so nothing about it is unknown.
func TestRowsLeftOpen(t *testing.T) {
	t.Parallel()
	in, pool := newInbox(t)
	failed := errors.New("failed")
	for _, returned := range []error{failed, nil} {
		_, err := in.Middleware(func(msg *message.Message) ([]*message.Message, error) {
			tx, err := pgxinbox.TxFromContext(msg.Context())
			require.NoError(t, err)
			_, err = tx.Query(msg.Context(), "SELECT generate_series(1, 100000)") //nolint:sqlclosecheck // the mistake that is tested
			require.NoError(t, err)
			return nil, returned
		})(message.NewMessage(inbox.NewUUID(), nil))
		if returned != nil {
			require.ErrorIs(t, err, failed)
			require.False(t, inbox.IsTransient(err), err)
		} else {
			require.ErrorIs(t, err, inbox.ErrTxBusy)
			require.NotErrorIs(t, err, inbox.ErrCommitUnknown)
		}
	}
	var rows int
	require.NoError(t, pool.QueryRow(context.Background(), "SELECT count(*) FROM watermill_inbox").Scan(&rows))
	require.Zero(t, rows)
	require.Zero(t, pool.Stat().AcquiredConns())
}
