package tests_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	wsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox/outbox"
	"github.com/watermill-contrib/watermill-inbox/tests"
)

// withOutbox gives env an outbox of watermill-sql's tables, or of a table of its own where watermill-sql has none.
func withOutbox(t testing.TB, env *tests.Env, fresh bool) {
	t.Helper()
	ctx := context.Background()
	var table, create string
	switch env.Config.Dialect {
	case sqlinbox.PostgreSQL:
		table = fmt.Sprintf(`"%s"."watermill_charged"`, env.Space)
		name := func(topic string) string { return fmt.Sprintf(`"%s"."watermill_%s"`, env.Space, topic) }
		schema := wsql.DefaultPostgreSQLSchema{
			GenerateMessagesTableName: name,
			GeneratePayloadType:       func(string) string { return "BYTEA" },
		}
		create = schema.SchemaInitializingQueries("charged")[0].Query
		env.Outbox = newOutbox(t, schema)
	case sqlinbox.MySQL:
		table = fmt.Sprintf("`%s`.`watermill_charged`", env.Space)
		name := func(topic string) string { return fmt.Sprintf("`%s`.`watermill_%s`", env.Space, topic) }
		schema := wsql.DefaultMySQLSchema{
			GenerateMessagesTableName: name,
			GeneratePayloadType:       func(string) string { return "LONGBLOB" },
		}
		create = schema.SchemaInitializingQueries("charged")[0].Query
		env.Outbox = newOutbox(t, schema)
	default:
		table = "outgoing"
		create = `CREATE TABLE outgoing ("offset" INTEGER PRIMARY KEY, payload BLOB NOT NULL)`
		env.Outbox = func(ctx context.Context) (message.Publisher, error) { return plainOutbox{ctx}, ctxTx(ctx) }
	}
	if fresh {
		_, err := env.DB.ExecContext(ctx, create)
		require.NoError(t, err)
	}
	env.Outgoing = func(t testing.TB) []string {
		t.Helper()
		order := `"offset"`
		if env.Config.Dialect == sqlinbox.MySQL {
			order = "`offset`"
		}
		rows, err := env.DB.QueryContext(ctx, "SELECT payload FROM "+table+" ORDER BY "+order)
		require.NoError(t, err)
		defer rows.Close() // rows.Err tells
		var payloads []string
		for rows.Next() {
			var payload []byte
			require.NoError(t, rows.Scan(&payload))
			payloads = append(payloads, string(payload))
		}
		require.NoError(t, rows.Err())
		return payloads
	}
}

func newOutbox(t testing.TB, schema wsql.SchemaAdapter) inbox.Outbox {
	t.Helper()
	out, err := outbox.New(outbox.Config{SchemaAdapter: schema, Logger: watermill.NopLogger{}})
	require.NoError(t, err)
	return out
}

// plainOutbox inserts payloads in the transaction of a context.
type plainOutbox struct{ ctx context.Context }

func ctxTx(ctx context.Context) error {
	_, err := sqlinbox.TxFromContext(ctx)
	return err
}

func (p plainOutbox) Publish(_ string, messages ...*message.Message) error {
	tx, err := sqlinbox.TxFromContext(p.ctx)
	if err != nil {
		return err
	}
	for _, msg := range messages {
		if _, err := tx.ExecContext(p.ctx, "INSERT INTO outgoing (payload) VALUES (?)", []byte(msg.Payload)); err != nil {
			return err
		}
	}
	return nil
}

func (plainOutbox) Close() error { return nil }
