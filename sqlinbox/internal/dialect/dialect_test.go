package dialect

import (
	"fmt"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func dialects() map[string]Dialect {
	return map[string]Dialect{"postgresql": PostgreSQL(), "mariadb": MariaDB(), "mysql": MySQL(), "sqlite": SQLite()}
}

func TestValidName(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"a", "A", "_", "_1", "watermill_inbox", "Order", "select", strings.Repeat("x", 40)} {
		require.True(t, ValidName(name), "%q", name)
	}
	for _, name := range []string{
		"", "1a", "a b", "a-b", "a.b", `a"b`, "a`b", "a'b", "a;b", "a\n", "\na", "a\x00", "ä", "a\u200b", "a$b", "a{inbox}",
		strings.Repeat("x", 41),
	} {
		require.False(t, ValidName(name), "%q", name)
	}
}

// The longest prefix leaves room for the longest suffix in PostgreSQL's 63 bytes, the shortest limit of the databases.
func TestValidNamesHaveRoomForTheSuffixes(t *testing.T) {
	t.Parallel()
	for _, suffix := range suffixes {
		require.LessOrEqual(t, 40+len(suffix), 63, suffix)
	}
	const indexes = 4
	require.Len(t, suffixes, reflect.TypeFor[Names]().NumField()-indexes, "a new table belongs into both")
}

func TestQuote(t *testing.T) {
	t.Parallel()
	for name, d := range dialects() {
		mark := `"`
		if d.Name == "mysql" {
			mark = "`"
		}
		require.Equal(t, mark+"order"+mark, d.Quote("order"), name)
		require.Equal(t, mark+"a"+mark+mark+"; DROP"+mark, d.Quote("a"+mark+"; DROP"), name)
	}
	require.Equal(t, `'it''s'`, literal("it's"))
}

func TestNames(t *testing.T) {
	t.Parallel()
	require.Equal(t, Names{
		Inbox: `"Inbox"`, Produced: `"Inbox_produced"`, Operations: `"Inbox_operations"`, Queue: `"Inbox_queue"`, Steps: `"Inbox_steps"`, Lanes: `"Inbox_lanes"`,
		QueueDue: `"Inbox_queue_due"`, QueueLane: `"Inbox_queue_lane"`, QueueKey: `"Inbox_queue_key"`, OperationOwner: `"Inbox_operations_owner"`,
		Horizons: `"Inbox_horizons"`, Consumers: `"Inbox_consumers"`,
		Migrations: `"Inbox_migrations"`,
	}, NewNames("", "Inbox", doubleQuote))
	require.Equal(t, Names{
		Inbox: `"s"."p"`, Produced: `"s"."p_produced"`, Operations: `"s"."p_operations"`, Queue: `"s"."p_queue"`, Steps: `"s"."p_steps"`, Lanes: `"s"."p_lanes"`,
		QueueDue: `"s"."p_queue_due"`, QueueLane: `"s"."p_queue_lane"`, QueueKey: `"s"."p_queue_key"`, OperationOwner: `"s"."p_operations_owner"`,
		Horizons: `"s"."p_horizons"`, Consumers: `"s"."p_consumers"`,
		Migrations: `"s"."p_migrations"`,
	}, NewNames("s", "p", doubleQuote))
}

// all gives every SQL text of a dialect, filled in.
func all(d Dialect, schema, prefix string) map[string]string {
	texts := map[string]string{}
	statements := reflect.ValueOf(d.Statements(NewNames(schema, prefix, d.Quote)))
	for i := range statements.NumField() {
		texts[statements.Type().Field(i).Name] = statements.Field(i).Interface().(Statement).SQL
	}
	sc := d.NewSchema(schema, prefix, 42)
	for name, sql := range map[string]string{
		"begin": sc.Begin, "lock": sc.Lock, "unlock": sc.Unlock, "has schema": sc.HasSchema, "create schema": sc.CreateSchema,
		"versions table": sc.VersionsTable, "versions": sc.Versions, "drop versions": sc.DropVersions(),
	} {
		texts[name] = sql
	}
	for _, table := range sc.HasTables() {
		texts["has "+table.Name] = table.Count
	}
	for v := 1; v <= sc.Latest(); v++ {
		for i, sql := range sc.Up(v) {
			texts[fmt.Sprint("up ", v, ".", i)] = sql
		}
		for i, sql := range sc.Down(v) {
			texts[fmt.Sprint("down ", v, ".", i)] = sql
		}
	}
	return texts
}

func TestEveryNameIsFilledIn(t *testing.T) {
	t.Parallel()
	for name, d := range dialects() {
		for _, schema := range []string{"", "my_schema"} {
			for what, sql := range all(d, schema, "my_prefix") {
				require.NotRegexp(t, `[{}]`, sql, "%s: %s", name, what)
				if schema != "" && strings.Contains(sql, "my_prefix") && !strings.Contains(what, "has ") {
					require.Equal(t,
						strings.Count(sql, d.Quote("my_schema")+"."),
						strings.Count(sql, d.Quote("my_schema")+"."+d.Quote("my_prefix")[:len("my_prefix")+1]),
						"%s: %s: every table is qualified", name, what)
				}
				require.NotContains(t, sql, "watermill_inbox\"", "%s: %s", name, what)
			}
		}
	}
}

// Each argument is used, and none that is not there.
func TestStatementsUseTheirArguments(t *testing.T) {
	t.Parallel()
	for name, d := range dialects() {
		s := d.Statements(NewNames("", "p", d.Quote))
		want := map[string]struct {
			statement Statement
			args      int
		}{
			"claim":      {s.Claim, 9},
			"lookup":     {s.Lookup, 3},
			"record":     {s.Record, 3},
			"forget":     {s.Forget, 1},
			"put scheme": {s.PutScheme, 3},
			"get scheme": {s.GetScheme, 1},
		}
		if name == "postgresql" {
			claim := want["claim"]
			claim.args = 10 // the number of the advisory lock
			want["claim"] = claim
		}
		for what, tt := range want {
			args := make([]any, tt.args)
			for i := range args {
				args[i] = i + 1
			}
			used := map[int]bool{}
			switch {
			case d.positional:
				require.NotRegexp(t, `\?\d`, tt.statement.SQL)
				ordered := tt.statement.Args(args...)
				require.Len(t, ordered, strings.Count(tt.statement.SQL, "?"), "%s: %s", name, what)
				for _, n := range ordered {
					used[n.(int)] = true
				}
			default:
				require.Equal(t, args, tt.statement.Args(args...))
				for _, found := range regexp.MustCompile(`[$?](\d+)`).FindAllStringSubmatch(tt.statement.SQL, -1) {
					var n int
					_, err := fmt.Sscan(found[1], &n)
					require.NoError(t, err)
					used[n] = true
				}
			}
			require.Len(t, used, tt.args, "%s: %s", name, what)
			for i := range tt.args {
				require.True(t, used[i+1], "%s: %s: argument %d", name, what, i+1)
			}
		}
	}
}

func TestPositional(t *testing.T) {
	t.Parallel()
	s := positional("SELECT ?2, ?1, ?2 WHERE x = ?3")
	require.Equal(t, "SELECT ?, ?, ? WHERE x = ?", s.SQL)
	require.Equal(t, []any{"b", "a", "b", "c"}, s.Args("a", "b", "c"))
	require.Empty(t, positional("SELECT 1").Args("a"))
}

// A statement that waits for another copy's transaction holds a connection, and on MySQL and MariaDB it deadlocks when
// that one rolls back.
func TestClaimsDoNotWait(t *testing.T) {
	t.Parallel()
	for name, mark := range map[string]string{
		"postgresql": "pg_try_advisory_xact_lock",
		"mariadb":    "innodb_lock_wait_timeout = 0",
		"mysql":      "NOWAIT",
	} {
		found := false
		for _, sql := range all(dialects()[name], "", "p") {
			found = found || strings.Contains(sql, mark)
		}
		require.True(t, found, "%s: %s", name, mark)
	}
}

// What is bound stays data: no statement of a message holds a literal that came from outside.
func TestSchemaQuotesItsNames(t *testing.T) {
	t.Parallel()
	s := PostgreSQL().NewSchema("it's", "p", -42)
	require.Equal(t, `SELECT count(*) FROM pg_namespace WHERE nspname = 'it''s'`, s.HasSchema)
	require.Equal(t, `CREATE SCHEMA "it's"`, s.CreateSchema)
	require.Equal(t, "SELECT pg_advisory_xact_lock(-42)", s.Lock)
	require.Equal(t, `SELECT count(*) FROM pg_class WHERE oid = to_regclass('"it''s"."p"')`, s.HasTables()[0].Count)

	require.Empty(t, PostgreSQL().NewSchema("", "p", 1).CreateSchema, "there is nothing to create")
	require.Empty(t, SQLite().NewSchema("", "p", 1).Lock, "BEGIN IMMEDIATE is the lock")
}

func TestIdleTimeout(t *testing.T) {
	t.Parallel()
	require.Empty(t, IdleTimeout(0))
	require.Empty(t, IdleTimeout(-time.Second))
	require.Equal(t, "SET LOCAL idle_in_transaction_session_timeout = 90000", IdleTimeout(90*time.Second))
}
