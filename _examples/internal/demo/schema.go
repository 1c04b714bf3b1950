package demo

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/tests/services"
)

// server gives the address of a PostgreSQL: that in DATABASE_URL, else what the tests of this repository use.
func server(ctx context.Context) (string, error) {
	if address := os.Getenv("DATABASE_URL"); address != "" {
		return address, nil
	}
	found, err := services.FindOne(ctx, "PostgreSQL")
	if err != nil {
		return "", fmt.Errorf("set DATABASE_URL to the address of a PostgreSQL: %w", err)
	}
	return found.Address, nil
}

// withSchema makes a schema, calls run with an address that leads to it, and drops the schema.
func withSchema(ctx context.Context, run func(ctx context.Context, databaseURL string) error) (err error) {
	address, err := server(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 45*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, address)
	if err != nil {
		return err
	}
	schema := "example_" + strings.ReplaceAll(inbox.NewUUID(), "-", "")[:20]
	if _, err := conn.Exec(ctx, "CREATE SCHEMA "+schema); err != nil {
		return errors.Join(err, conn.Close(ctx))
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		_, dropErr := conn.Exec(ctx, "DROP SCHEMA "+schema+" CASCADE")
		err = errors.Join(err, dropErr, conn.Close(ctx))
	}()
	address, err = withSearchPath(address, schema)
	if err != nil {
		return err
	}
	return run(ctx, address)
}

// withSearchPath makes schema the one that table names without a schema belong to.
func withSearchPath(address, schema string) (string, error) {
	if !strings.Contains(address, "://") { // host=... user=...
		return address + " search_path=" + schema, nil
	}
	u, err := url.Parse(address)
	if err != nil {
		return "", err
	}
	query := u.Query()
	query.Set("search_path", schema)
	u.RawQuery = query.Encode()
	return u.String(), nil
}
