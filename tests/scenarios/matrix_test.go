package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// printed reads the results against the catalog and returns what the command prints.
func printed(t *testing.T, catalog string, run ...string) (string, *matrix) {
	t.Helper()
	c, err := parse("f", catalog)
	require.NoError(t, err)
	m := newMatrix(c, read(t, stream(t, run...)).proofs(c))
	var b strings.Builder
	m.print(&b)
	return b.String(), m
}

const withHole = `column pgx PostgreSQL
column sqlite SQLite
group A Copies
A1 first fails
A2 storm
   hole sqlite Features.X=false: why
A12 (any) nested
group H Start-up
H2 (pgx) pooler
`

func TestMatrix_Full(t *testing.T) {
	t.Parallel()

	text, m := printed(t, withHole,
		"TestStore/pgx/TestA1_Retry pass", "TestStore/sqlite/TestA1_Retry pass", "TestA1_Plain pass",
		"TestStorm/pgx/TestA2_Copies pass", "TestA12_Twice pass", "TestPooler/pgx/TestH2_All pass")

	require.Zero(t, m.empty())
	require.Equal(t, `line  test           any   pgx   sqlite
A1    TestA1_Plain   pass
      TestA1_Retry         pass  pass
A2    TestA2_Copies  -     pass  hole
A12   TestA12_Twice  pass  -     -
H2    TestH2_All     -     pass  -

6 cells, 5 filled, 1 declared holes, 0 empty
`, text)
}

func TestMatrix_Empty(t *testing.T) {
	t.Parallel()

	text, m := printed(t, withHole,
		"TestA1_Retry/pgx:     a_test.go:5: no server", "TestA1_Retry/pgx skip",
		"TestA2_Copies/pgx pass", "TestA2_More/pgx fail", "TestA2_Copies/sqlite pass", "TestA22_Typo pass")

	require.Equal(t, 5, m.empty())
	require.Equal(t, `line  test           any    pgx    sqlite
A1    TestA1_Retry   -      skip   EMPTY
A2    TestA2_Copies  -      pass   pass
      TestA2_More           FAIL
A12   (no test)      EMPTY  -      -
H2    (no test)      -      EMPTY  -

empty: A1 (first fails) on pgx: TestA1_Retry was skipped: no server
empty: A1 (first fails) on sqlite: no test
empty: A2 (storm) on pgx: TestA2_More failed
empty: A12 (nested) on any: no test
empty: H2 (pooler) on pgx: no test
note: A2 on sqlite is declared a hole, but TestA2_Copies passed
note: TestA22_Typo names line A22, which is not in the table
6 cells, 0 filled, 1 declared holes, 5 empty
`, text)
}

func TestMatrix_JoinsColumnsOfOneReason(t *testing.T) {
	t.Parallel()

	text, _ := printed(t, withHole, "TestOther pass")

	require.Contains(t, text, "empty: A1 (first fails) on pgx, sqlite: no test\n")
}

// A line that is proved database by database needs all of them; one test without a
// database is enough, but no failure is passed over.
func TestMatrix_Any(t *testing.T) {
	t.Parallel()
	const catalog = "column pgx P\ncolumn sqlite S\ngroup A Copies\nA12 (any) nested\n"

	for run, cells := range map[string]map[string]state{
		"TestOther pass":                        {"any": empty},
		"TestA12_X skip":                        {"any": empty},
		"TestA12_X pass":                        {"any": filled},
		"TestA12_X/pgx pass":                    {"pgx": filled, "sqlite": empty},
		"TestA12_X/pgx pass, TestA12_Y pass":    {"any": filled},
		"TestA12_X/pgx fail, TestA12_Y pass":    {"any": filled, "pgx": empty},
		"TestA12_X/oracle pass":                 {"any": filled},
		"TestA12_X/oracle pass, TestA12_X fail": {"any": empty},
	} {
		_, m := printed(t, catalog, strings.Split(run, ", ")...)
		got := map[string]state{}
		for _, c := range m.cells {
			got[c.column] = c.state
		}
		require.Equal(t, cells, got, run)
	}
}
