package tests_test

import (
	"database/sql"
	"testing"

	"github.com/watermill-contrib/watermill-inbox/tests"
)

// column is one database through one driver.
type column struct {
	features tests.Features
	harness  tests.Harness
}

const postgresReadOnly = "SET default_transaction_read_only = on"

func columns() []column {
	levels := []sql.IsolationLevel{sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable}
	return []column{
		{tests.Features{Name: "pgx", Server: true, StartServer: startPostgreSQL, RefusesTxEnd: true, SeesTxEndSQL: true, AbortsOnError: true, DeferredConstraints: true, ReadOnly: postgresReadOnly, Isolation: levels}, pgxHarness},
		{tests.Features{Name: "pgx-sql", Server: true, StartServer: startPostgreSQL, SeesTxEndSQL: true, AbortsOnError: true, DeferredConstraints: true, ReadOnly: postgresReadOnly, Isolation: levels}, pgxSQLHarness},
		{tests.Features{Name: "pgx-opendb", Server: true, StartServer: startPostgreSQL, SeesTxEndSQL: true, AbortsOnError: true, DeferredConstraints: true, ReadOnly: postgresReadOnly, Isolation: levels}, openDBHarness},
		{tests.Features{Name: "mariadb", Server: true, StartServer: startMariaDB, ReadOnly: mariadbReadOnly, Isolation: levels}, mariadbHarness},
		{tests.Features{Name: "sqlite", SeesTxEndSQL: true, DeferredConstraints: true, ReadOnly: "PRAGMA query_only = 1", Isolation: []sql.IsolationLevel{sql.LevelSerializable}}, sqliteHarness},
	}
}

func TestStore(t *testing.T) {
	for _, c := range columns() {
		tests.TestStore(t, c.features, c.harness)
	}
}

// TestChild is the main function of the processes that the suite starts; otherwise it does nothing.
func TestChild(t *testing.T) {
	for _, c := range append(columns(), pooledColumns()...) {
		if tests.IsChildOf(c.features.Child()) {
			tests.RunChild(t, c.features, c.harness)
		}
	}
}
