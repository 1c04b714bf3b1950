package pgxinbox_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox/pgxinbox"
)

// A service that stays on database/sql: the store is sqlinbox's, the claim travels with BEGIN all the same.
func ExampleOpenDB() {
	config, remove := openConfig()
	defer remove()
	db := pgxinbox.OpenDB(*config) // in the place of stdlib.OpenDB, or of sql.Open("pgx", url)
	defer db.Close()
	fmt.Println("charges:", chargeTwice(db))
	// Output: charges: 1
}

// Under a wrapper of the driver, such as otelsql.OpenDB, only the connector is needed.
func ExampleConnector() {
	config, remove := openConfig()
	defer remove()
	db := sql.OpenDB(pgxinbox.Connector(stdlib.GetConnector(*config))) // otelsql.OpenDB(pgxinbox.Connector(…))
	defer db.Close()
	fmt.Println("charges:", chargeTwice(db))
	// Output: charges: 1
}

// chargeTwice is a service on database/sql that gets a message twice.
func chargeTwice(db *sql.DB) (charges int) {
	ctx := context.Background()
	store, err := sqlinbox.NewStore(ctx, db, sqlinbox.Config{Dialect: sqlinbox.PostgreSQL, InitializeSchema: true})
	check(err)
	in, err := inbox.New(store, inbox.Config{})
	check(err)
	handler := in.As("charge")(func(msg *message.Message) ([]*message.Message, error) {
		tx, err := sqlinbox.TxFromContext(msg.Context()) // a *sql.Tx
		if err != nil {
			return nil, err
		}
		_, err = tx.ExecContext(msg.Context(), "INSERT INTO charges (order_id) VALUES ($1)", string(msg.Payload))
		return nil, err
	})
	for range 2 {
		_, err = handler(message.NewMessage("0198c0de-0000-7000-8000-000000000042", []byte("order 42")))
		check(err)
	}
	check(db.QueryRowContext(ctx, "SELECT count(*) FROM charges").Scan(&charges))
	return charges
}

// openConfig gives the address in DATABASE_URL with a search_path to a schema of the example's own, with a table of
// charges.
func openConfig() (config *pgx.ConnConfig, remove func()) {
	ctx := context.Background()
	config, err := pgx.ParseConfig(os.Getenv("DATABASE_URL"))
	check(err)
	schema := "example_" + strings.ReplaceAll(inbox.NewUUID(), "-", "")
	config.RuntimeParams["search_path"] = schema
	admin, err := pgx.ConnectConfig(ctx, config)
	check(err)
	_, err = admin.Exec(ctx, "CREATE SCHEMA "+schema+"; CREATE TABLE "+schema+".charges (order_id text NOT NULL)")
	check(err)
	return config, func() {
		_, err := admin.Exec(ctx, "DROP SCHEMA "+schema+" CASCADE")
		check(err)
		check(admin.Close(ctx))
	}
}
