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

func columns() []column {
	levels := []sql.IsolationLevel{sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable}
	return []column{
		{tests.Features{Name: "pgx", Server: true, AbortsOnError: true, Isolation: levels}, pgxHarness},
		{tests.Features{Name: "pgx-sql", Server: true, AbortsOnError: true, Isolation: levels}, pgxSQLHarness},
		{tests.Features{Name: "sqlite", Isolation: []sql.IsolationLevel{sql.LevelSerializable}}, sqliteHarness},
	}
}

func TestStore(t *testing.T) {
	for _, c := range columns() {
		tests.TestStore(t, c.features, c.harness)
	}
}

// TestChild is the main function of the processes that the suite starts; otherwise it does nothing.
func TestChild(t *testing.T) {
	for _, c := range columns() {
		if tests.IsChildOf(c.features.Name) {
			tests.RunChild(t, c.features, c.harness)
		}
	}
}
