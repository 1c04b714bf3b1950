package tests_test

import (
	"context"
	"database/sql"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox"
	"github.com/watermill-contrib/watermill-inbox/tests"
	"github.com/watermill-contrib/watermill-inbox/tests/services"
)

// mariadbHarness is MariaDB through go-sql-driver/mysql; the space is a database (schema).
func mariadbHarness(t testing.TB, o tests.Options) *tests.Env {
	ctx := context.Background()
	dsn := o.DSN
	if dsn == "" {
		dsn = services.MariaDB(t)
	}
	open := func(schema string, via func(string) string) *sql.DB {
		config, err := mysql.ParseDSN(dsn)
		require.NoError(t, err)
		config.DBName = schema
		config.InterpolateParams = true
		config.Params = map[string]string{"tx_isolation": "'READ-COMMITTED'"}
		if via != nil {
			config.Addr = via(config.Addr)
		}
		connector, err := mysql.NewConnector(config)
		require.NoError(t, err)
		db := sql.OpenDB(connector)
		t.Cleanup(func() { _ = db.Close() })
		return db
	}
	schema := o.Space
	if schema == "" {
		schema = "t_" + strings.ReplaceAll(inbox.NewUUID(), "-", "")
		root := open("", nil)
		_, err := root.ExecContext(ctx, "CREATE DATABASE "+schema)
		require.NoError(t, err)
		_, err = root.ExecContext(ctx, "CREATE TABLE "+schema+".effects (name VARCHAR(200) NOT NULL) ENGINE = InnoDB")
		require.NoError(t, err)
		t.Cleanup(func() { _, _ = root.ExecContext(ctx, "DROP DATABASE "+schema) })
	}
	db, own := open(schema, o.Via), open(schema, nil)
	o.Config.Dialect, o.Config.Schema = sqlinbox.MySQL, schema
	table := func(suffix string) string { return "`" + schema + "`.`" + prefixOf(o.Config) + suffix + "`" }
	env := &tests.Env{
		Space: schema, Config: o.Config, DB: own,
		Memory: table(""), Produced: table("_produced"), Consumers: table("_consumers"), Horizons: table("_horizons"),
		Effects: "`" + schema + "`.effects",
	}
	withOutbox(t, env, o.Space == "")
	openSQL(t, env, db, o, "INSERT INTO "+env.Effects+" (name) VALUES (?)")
	return env
}
