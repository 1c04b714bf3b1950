package tests_test

import (
	"context"
	"database/sql"
	"path/filepath"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox"
)

// TestSQLiteBusyAtCommit has COMMIT answer "busy", as it does without a write-ahead log while somebody reads.
// database/sql takes such a transaction for done; SQLite keeps it open.
func TestSQLiteBusyAtCommit(t *testing.T) {
	ctx := context.Background()
	dsn := "file:" + filepath.Join(t.TempDir(), "inbox.db") + "?_txlock=immediate&_pragma=busy_timeout(10)&_pragma=journal_mode(DELETE)"
	open := func() *sql.DB {
		db, err := sql.Open("sqlite", dsn)
		require.NoError(t, err)
		t.Cleanup(func() { _ = db.Close() })
		db.SetMaxOpenConns(1)
		return db
	}
	db, reader := open(), open()
	_, err := db.ExecContext(ctx, "CREATE TABLE effects (name TEXT NOT NULL)")
	require.NoError(t, err)
	store, err := sqlinbox.NewStore(ctx, db, sqlinbox.Config{Dialect: sqlinbox.SQLite, InitializeSchema: true})
	require.NoError(t, err)
	in, err := inbox.New(store, inbox.Config{})
	require.NoError(t, err)
	calls := 0
	handle := in.As("charge")(func(msg *message.Message) ([]*message.Message, error) {
		calls++
		tx, err := sqlinbox.TxFromContext(msg.Context())
		if err != nil {
			return nil, err
		}
		_, err = tx.ExecContext(msg.Context(), "INSERT INTO effects (name) VALUES (?)", msg.UUID)
		return nil, err
	})
	_, err = handle(message.NewMessage(inbox.NewUUID(), nil)) // the consumer is known
	require.NoError(t, err)

	conn, err := reader.Conn(ctx)
	require.NoError(t, err)
	for _, statement := range []string{"BEGIN DEFERRED", "SELECT name FROM effects"} {
		_, err := conn.ExecContext(ctx, statement)
		require.NoError(t, err)
	}
	calls = 0
	msg := message.NewMessage(inbox.NewUUID(), nil)
	_, err = handle(msg.Copy())
	require.ErrorIs(t, err, inbox.ErrSerialization)
	require.True(t, inbox.IsTransient(err))
	require.Equal(t, 4, calls, "the transaction was run again three times, on the only connection")

	_, err = conn.ExecContext(ctx, "ROLLBACK")
	require.NoError(t, err)
	require.NoError(t, conn.Close())
	for range 2 {
		_, err = handle(msg.Copy())
		require.NoError(t, err)
	}
	var effects int
	require.NoError(t, db.QueryRowContext(ctx, "SELECT count(*) FROM effects WHERE name = ?", msg.UUID).Scan(&effects))
	require.Equal(t, 1, effects)
	require.Equal(t, 5, calls)
}
