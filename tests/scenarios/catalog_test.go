package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const small = `# a comment
column  pgx     PostgreSQL
column  sqlite  SQLite
planned mariadb MariaDB

group A Copies
A1  first fails
A2  (any) nested
    hole mariadb Features.X=false: why
group H Start-up
H2  (pgx) pooler
`

func TestParse(t *testing.T) {
	t.Parallel()

	c, err := parse("f", small)

	require.NoError(t, err)
	require.Equal(t, []string{"pgx", "sqlite"}, c.required())
	require.Equal(t, []group{
		{name: "A", text: "Copies", lines: []line{
			{name: "A1", text: "first fails", holes: map[string]string{}},
			{name: "A2", text: "nested", any: true, holes: map[string]string{"mariadb": "Features.X=false: why"}},
		}},
		{name: "H", text: "Start-up", lines: []line{
			{name: "H2", text: "pooler", columns: []string{"pgx"}, holes: map[string]string{}},
		}},
	}, c.groups)
}

func TestParse_Refuses(t *testing.T) {
	t.Parallel()
	for text, complaint := range map[string]string{
		"column pgx again":            `f:12: column "pgx": want a new name`,
		"column any none":             `column "any"`,
		"group K Kites":               `group "K"`,
		"A3 text":                     "line A3 stands outside of its group",
		"H2 text":                     "line H2 a second time",
		"H3":                          "line H3 has no text",
		"H3 (pgx text":                "line H3: no closing parenthesis",
		"H3 (oracle) text":            `line H3: unknown column "oracle"`,
		"hole oracle reason":          `hole of H2: unknown column "oracle"`,
		"hole pgx":                    "hole of H2 in pgx: no reason",
		"hole sqlite reason":          "hole of H2: the line has no cell in sqlite",
		"hole pgx r\nhole pgx r":      "f:13: hole of H2: pgx a second time",
		"group I Seen\nhole pgx text": "hole pgx stands below no line",
		"colour red":                  `"colour" is neither`,
	} {
		_, err := parse("f", small+text+"\n")
		require.ErrorContains(t, err, complaint, "%s", text)
	}
}

func TestCatalog_Keep(t *testing.T) {
	t.Parallel()
	c, err := parse("f", small)
	require.NoError(t, err)

	require.ErrorContains(t, c.keep([]string{"B"}), `group "B" is not in the table`)
	require.NoError(t, c.keep([]string{"H"}))
	require.Nil(t, c.line("A1"))
	require.NotNil(t, c.line("H2"))
}

func TestCatalog_Print(t *testing.T) {
	t.Parallel()
	c, err := parse("f", small)
	require.NoError(t, err)

	var b strings.Builder
	c.print(&b)

	require.Equal(t, `column   pgx       PostgreSQL
column   sqlite    SQLite
planned  mariadb   MariaDB

A  Copies
  A1   first fails
  A2   nested (one test without a database is enough)
       hole on mariadb: Features.X=false: why

H  Start-up
  H2   pooler (pgx only)
`, b.String())
}

func TestScenarios_AreComplete(t *testing.T) {
	t.Parallel()

	c, err := parse("scenarios.txt", scenarios)

	require.NoError(t, err)
	lines := map[string]int{}
	for _, g := range c.groups {
		lines[g.name] = len(g.lines)
	}
	require.GreaterOrEqual(t, lines["A"], 12)
	require.GreaterOrEqual(t, lines["B"], 13)
	require.GreaterOrEqual(t, lines["D"], 4)
}
