package sqlinbox_test

import (
	"context"
	"database/sql"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox"
	"github.com/watermill-contrib/watermill-inbox/tests/services"
)

// TestMySQL_IsolationLevel tells the level of a message's transaction by what it sees of another one.
func TestMySQL_IsolationLevel(t *testing.T) {
	t.Parallel()
	const repeatable, committed = 0, 1
	for name, c := range map[string]struct {
		session string // in the DSN
		level   sql.IsolationLevel
		want    int // what a row holds at the second look
	}{
		"TheServers":          {want: committed},
		"TheDSNs":             {session: "'READ-COMMITTED'", want: committed},
		"TheDSNsIsStricter":   {session: "'SERIALIZABLE'", want: committed},
		"Config":              {level: sql.LevelRepeatableRead, want: repeatable},
		"ConfigAgainstTheDSN": {session: "'READ-COMMITTED'", level: sql.LevelRepeatableRead, want: repeatable},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := openMySQL(t)
			config, err := mysql.ParseDSN(services.MariaDB(t))
			require.NoError(t, err)
			if c.session != "" {
				config.Params = map[string]string{"tx_isolation": c.session}
			}
			db := opener(t, "mysql", config.FormatDSN())()
			d.config.Isolation, d.config.InitializeSchema = c.level, true
			store, err := sqlinbox.NewStore(t.Context(), db, d.config)
			require.NoError(t, err)
			in, err := inbox.New(store, inbox.Config{Consumer: func(*message.Message) string { return "charge" }})
			require.NoError(t, err)
			d.exec(t, "CREATE TABLE "+d.config.Schema+".account (n INT) ENGINE = InnoDB")
			d.exec(t, "INSERT INTO "+d.config.Schema+".account VALUES (0)")
			handler := in.Middleware(sqlinboxHandler(func(ctx context.Context, tx *sql.Tx) {
				for _, want := range []int{0, c.want} {
					var n int
					require.NoError(t, tx.QueryRowContext(ctx, "SELECT n FROM "+d.config.Schema+".account").Scan(&n))
					require.Equal(t, want, n)
					d.exec(t, "UPDATE "+d.config.Schema+".account SET n = 1")
				}
			}))
			_, err = handler(message.NewMessage("order-42", nil))
			require.NoError(t, err)
		})
	}
}
