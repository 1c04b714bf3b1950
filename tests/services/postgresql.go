package services

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
)

const postgreSQLPort = 25431

// PostgreSQL returns the address of the shared PostgreSQL, for pgx, as a superuser. It is
// durable and allows 500 connections. Tests keep apart by schemas or databases of their own.
func PostgreSQL(t testing.TB) string {
	t.Helper()
	return need(t, postgreSQL())
}

func postgreSQL() service {
	return service{
		name:     "PostgreSQL",
		env:      "INBOX_TEST_POSTGRES",
		port:     postgreSQLPort,
		address:  cluster{port: postgreSQLPort}.dsn(),
		compose:  "postgresql",
		packages: []string{"postgresql"},
		ping: func(ctx context.Context, dsn string) (string, error) {
			return askPostgreSQL(ctx, dsn, "SHOW cluster_name")
		},
		version: func(ctx context.Context, dsn string) (string, error) {
			return askPostgreSQL(ctx, dsn, "SELECT version()")
		},
		start: func(ctx context.Context, f finder) error {
			c, err := sharedCluster(ctx, f)
			if err != nil {
				return err
			}
			if err := c.create(ctx); err != nil {
				return err
			}
			return c.start(ctx)
		},
		stop: func(ctx context.Context, f finder) error {
			c, err := sharedCluster(ctx, f)
			if err != nil {
				return err
			}
			if !c.running(ctx) {
				return errors.New("it was started by another user")
			}
			return c.stop(ctx, stopFast)
		},
	}
}

// sharedCluster has a data directory for each major version: after an upgrade of the machine
// the new binaries begin with a new one.
func sharedCluster(ctx context.Context, f finder) (cluster, error) {
	bin, err := findPostgreSQL(ctx, f)
	if err != nil {
		return cluster{}, err
	}
	as, err := findAccount("postgres")
	if err != nil {
		return cluster{}, err
	}
	version, err := run(ctx, nil, bin+"/postgres", "--version")
	if err != nil {
		return cluster{}, err
	}
	return cluster{
		bin: bin, dir: f.state.path(fmt.Sprintf("postgresql-%d", number(version))), as: as, port: postgreSQLPort,
		settings: []string{"cluster_name=" + mark, "max_connections=500"},
	}, nil
}

// askPostgreSQL runs a statement in the simple protocol, the only one that the console of
// PgBouncer speaks, and returns the first value of its last result.
func askPostgreSQL(ctx context.Context, dsn, sql string) (string, error) {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	results, err := conn.PgConn().Exec(ctx, sql).ReadAll()
	if err != nil {
		return "", err
	}
	if len(results) == 0 || len(results[len(results)-1].Rows) == 0 {
		return "", errors.New("no answer to " + sql)
	}
	return string(results[len(results)-1].Rows[0][0]), nil
}
