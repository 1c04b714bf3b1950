package dialect

import (
	"bytes"
	"database/sql"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite" // runs the SQL
)

func TestMigrationsAreNumberedAndReversible(t *testing.T) {
	t.Parallel()
	want := PostgreSQL().Migrations
	require.NotEmpty(t, want)
	for name, d := range dialects() {
		require.Len(t, d.Migrations, len(want), name)
		for i, m := range d.Migrations {
			require.Equal(t, i+1, m.Version, name)
			require.Equal(t, want[i].Name, m.Name, "%s: the steps are the same on every database", name)
			require.NotEmpty(t, m.Up, name)
			require.NotEmpty(t, m.Down, name)
		}
	}
}

// Every file belongs to a step that is run: a misspelled name would be left out in silence.
func TestEveryMigrationFileIsLoaded(t *testing.T) {
	t.Parallel()
	loaded := map[string]bool{}
	for folder, d := range map[string]Dialect{"postgres": PostgreSQL(), "mysql": MySQL(), "sqlite": SQLite()} {
		for _, m := range d.Migrations {
			for _, direction := range []string{"up", "down"} {
				loaded[fmt.Sprintf("migrations/%s/%03d_%s.%s.sql", folder, m.Version, m.Name, direction)] = true
			}
		}
	}
	require.NoError(t, fs.WalkDir(files, "migrations", func(file string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() {
			require.True(t, loaded[file], file)
		}
		return err
	}))
}

// Splitting loses nothing: the statements together are the file, to the last semicolon.
func TestStatementsAreTheWholeFile(t *testing.T) {
	t.Parallel()
	require.NoError(t, fs.WalkDir(files, "migrations", func(file string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := files.ReadFile(file)
		require.NoError(t, err)
		require.NotContains(t, string(content), "\r", "%s: CRLF hides the ends of statements", file)
		folder, name := path.Split(file)
		statements := statementsOf(path.Base(folder), name)
		require.Equal(t, squeeze(string(content)), squeeze(strings.Join(statements, ";\n")+";"), file)

		for _, statement := range statements {
			require.Equal(t, strings.TrimSpace(statement), statement)
			bare := squeeze(withoutComments(statement))
			require.NotContains(t, bare, ";", "%s holds two statements", file)
			require.Regexp(t, `^(CREATE|DROP|ALTER|INSERT IGNORE) `, bare, file)
			require.Equal(t, strings.Count(bare, "("), strings.Count(bare, ")"), "%s: %s", file, bare)
			require.Regexp(t, `\{(inbox|produced|operations|queue|steps|lanes|horizons|consumers)\}`, bare, file)
		}
		return nil
	}))
}

// What a step creates its reverse drops, the last one first.
func TestDownUndoesUp(t *testing.T) {
	t.Parallel()
	created := regexp.MustCompile(`CREATE TABLE (?:IF NOT EXISTS )?\{(\w+)\}`)
	dropped := regexp.MustCompile(`DROP TABLE (?:IF EXISTS )?\{(\w+)\}`)
	for name, d := range dialects() {
		for _, m := range d.Migrations {
			up := tables(created, m.Up)
			slices.Reverse(up)
			require.ElementsMatch(t, up, tables(dropped, m.Down), "%s: version %d", name, m.Version)
		}
	}
}

// MySQL commits every DDL statement by itself: a migration that was killed is run again from its beginning.
func TestMySQLsStatementsCanBeRepeated(t *testing.T) {
	t.Parallel()
	for _, m := range MySQL().Migrations {
		for _, statement := range slices.Concat(m.Up, m.Down) {
			require.Regexp(t, `IF (NOT )?EXISTS|INSERT IGNORE`, statement)
		}
	}
}

func tables(form *regexp.Regexp, statements []string) []string {
	var names []string
	for _, statement := range statements {
		for _, found := range form.FindAllStringSubmatch(statement, -1) {
			names = append(names, found[1])
		}
	}
	return names
}

var comment = regexp.MustCompile(`--[^\n]*`)

func withoutComments(sql string) string { return comment.ReplaceAllString(sql, "") }

// squeeze makes every run of white space one space, and leaves none before a semicolon.
func squeeze(sql string) string {
	return strings.ReplaceAll(strings.Join(strings.Fields(sql), " "), " ;", ";")
}

// The SQL runs as it is, for every kind of prefix that ValidName lets pass: up, the statements of a message, down.
func TestSQLiteRunsAll(t *testing.T) {
	t.Parallel()
	for _, prefix := range []string{"watermill_inbox", "order", "Inbox", "_", strings.Repeat("x", 40)} {
		t.Run(prefix, func(t *testing.T) {
			t.Parallel()
			db, err := sql.Open("sqlite", "file::memory:")
			require.NoError(t, err)
			db.SetMaxOpenConns(1)
			t.Cleanup(func() { require.NoError(t, db.Close()) })
			exec := func(s Statement, args ...any) int64 {
				t.Helper()
				result, err := db.ExecContext(t.Context(), s.SQL, s.Args(args...)...)
				require.NoError(t, err, s.SQL)
				n, err := result.RowsAffected()
				require.NoError(t, err)
				return n
			}
			schema := SQLite().NewSchema("", prefix, 1)
			count := func() int {
				found := 0
				for _, table := range schema.HasTables() {
					var n int
					require.NoError(t, db.QueryRowContext(t.Context(), table.Count).Scan(&n))
					require.LessOrEqual(t, n, 1)
					found += n
				}
				return found
			}

			require.Zero(t, count())
			for range 2 {
				exec(Statement{SQL: schema.VersionsTable}) // may be there
			}
			require.Equal(t, 1, count())
			for v := 1; v <= schema.Latest(); v++ {
				for _, statement := range schema.Up(v) {
					exec(Statement{SQL: statement})
				}
			}
			require.Equal(t, len(suffixes), count())

			s := SQLite().Statements(schema.Tables)
			key, fingerprint, horizon := make([]byte, 16), make([]byte, 16), bytes.Repeat([]byte{9}, 16)
			at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC).UnixMilli()
			claim := func(key []byte, at any) int64 {
				return exec(s.Claim, key, fingerprint, at, "c", "", "42", "orders", "", horizon)
			}
			lookup := func(key []byte, at any) (found, processed, late bool, handler sql.NullString, messages []byte) {
				var fp []byte
				var consumer, source, id sql.NullString
				require.NoError(t, db.QueryRowContext(t.Context(), s.Lookup.SQL, s.Lookup.Args(key, at, horizon)...).
					Scan(&found, &processed, &late, &fp, &consumer, &source, &id, &handler, &messages))
				require.Equal(t, found, id.String == "42")
				return found, processed, late, handler, messages
			}

			found, _, late, _, _ := lookup(key, at)
			require.False(t, found || late)
			require.EqualValues(t, 1, claim(key, at))
			require.EqualValues(t, 0, claim(key, at), "taken")
			require.EqualValues(t, 1, exec(s.Record, key, "charge", []byte{1}))
			found, processed, late, handler, messages := lookup(key, at)
			require.True(t, found && processed)
			require.False(t, late)
			require.Equal(t, "charge", handler.String)
			require.Equal(t, []byte{1}, messages)
			require.EqualValues(t, 1, exec(s.Forget, key))
			_, _, _, handler, _ = lookup(key, at)
			require.False(t, handler.Valid)

			exec(Statement{SQL: "INSERT INTO " + schema.Tables.Horizons + " (id, consumer, source, scope, horizon) VALUES (?, 'c', '', '', ?)"}, horizon, at)
			other := append(make([]byte, 15), 1)
			require.EqualValues(t, 0, claim(other, at), "not after the horizon")
			found, _, late, _, _ = lookup(other, at)
			require.False(t, found)
			require.True(t, late)
			require.EqualValues(t, 1, claim(other, at+1), "after it")
			require.EqualValues(t, 1, claim(append(make([]byte, 15), 2), nil), "without a time there is no guard")

			require.EqualValues(t, 1, exec(s.PutScheme, key, "c", "1"))
			require.EqualValues(t, 0, exec(s.PutScheme, key, "c", "2"))
			var scheme string
			require.NoError(t, db.QueryRowContext(t.Context(), s.GetScheme.SQL, s.GetScheme.Args(key)...).Scan(&scheme))
			require.Equal(t, "1", scheme, "the first writer wins")

			for v := schema.Latest(); v >= 1; v-- {
				for _, statement := range schema.Down(v) {
					exec(Statement{SQL: statement})
				}
			}
			require.Equal(t, 1, count(), "only the versions are left")
			exec(Statement{SQL: schema.DropVersions()})
			require.Zero(t, count())
		})
	}
}
