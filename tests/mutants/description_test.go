package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParse(t *testing.T) {
	t.Parallel()

	mutants, err := parse("claim.txt", `# a comment
mutant: row-count-ignored
scenarios: A2, A3
package: ./sqlinbox
test: TestStore/sqlite/TestA2_Copies
env: ROUNDS=20 TZ=UTC
args: -race -short
edit: sqlinbox/store.go
-	if inserted == 0 {
+	if false {
 		return duplicate
edit: sqlinbox/tx.go
-	check()
-

mutant: no-scenario
package: .
test: TestX
edit: a.go
-a
+
+b
`)

	require.NoError(t, err)
	require.Equal(t, []mutant{
		{
			name:      "row-count-ignored",
			scenarios: []string{"A2", "A3"},
			pkg:       "./sqlinbox",
			test:      "TestStore/sqlite/TestA2_Copies",
			env:       []string{"ROUNDS=20", "TZ=UTC"},
			args:      []string{"-race", "-short"},
			edits: []edit{
				{
					file: "sqlinbox/store.go",
					old:  []string{"\tif inserted == 0 {", "\t\treturn duplicate"},
					new:  []string{"\tif false {", "\t\treturn duplicate"},
				},
				{file: "sqlinbox/tx.go", old: []string{"\tcheck()", ""}},
			},
			where: "claim.txt:2",
		},
		{
			name:  "no-scenario",
			pkg:   ".",
			test:  "TestX",
			edits: []edit{{file: "a.go", old: []string{"a"}, new: []string{"", "b"}}},
			where: "claim.txt:16",
		},
	}, mutants)
}

func TestParse_Refuses(t *testing.T) {
	t.Parallel()
	const good = "mutant: m\npackage: .\ntest: TestX\nedit: a.go\n-a\n"

	for text, complaint := range map[string]string{
		"package: .\n":                       "f:1: package before the first mutant",
		"mutant: m\n-a\n":                    "f:2: a line of code outside of an edit",
		good + "\n-a\n":                      "f:7: a line of code outside of an edit",
		good + "colour: red\n":               `f:6: unknown key "colour"`,
		good + "test: TestY\n":               "f:6: test a second time",
		good + "env:\n":                      `f:6: want "key: value"`,
		good + "env: x\n":                    `env "x"`,
		good + "scenarios: Z1\n":             `scenario "Z1"`,
		good + "edit: ../b.go\n-a\n":         `edit "../b.go"`,
		good + "edit: b.go\n+a\n":            "edit b.go: no old line",
		good + "edit: b.go\n-a\n+a\n":        "edit b.go: changes nothing",
		"mutant: M\npackage: .\ntest: T\n":   `name "M"`,
		"mutant: m\ntest: TestX\n":           `package ""`,
		"mutant: m\npackage: ./...\n":        `package "./..."`,
		"mutant: m\npackage: .\ntest: ^X\n":  `test "^X"`,
		"mutant: m\npackage: .\ntest: TestX": "no edit",
	} {
		_, err := parse("f", text)
		require.ErrorContains(t, err, complaint, "%s", text)
	}
}

func TestLoad(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(file, text string) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600))
	}

	_, err := load(dir)
	require.ErrorContains(t, err, "no *.txt file")

	write("b.txt", "mutant: second\npackage: .\ntest: TestX\nedit: a.go\n-a\n")
	write("a.txt", "mutant: first\npackage: .\ntest: TestX\nedit: a.go\n-a\n")
	mutants, err := load(dir)
	require.NoError(t, err)
	require.Equal(t, []string{"first", "second"}, []string{mutants[0].name, mutants[1].name})

	write("c.txt", "mutant: first\npackage: .\ntest: TestX\nedit: a.go\n-a\n")
	_, err = load(dir)
	require.ErrorContains(t, err, "mutant first is described at")
}

func TestLoad_OwnDescriptions(t *testing.T) {
	t.Parallel()

	_, err := load(".")

	require.NoError(t, err)
}

func TestMutant_InScenarios(t *testing.T) {
	t.Parallel()
	m := mutant{scenarios: []string{"A1", "B10"}}

	require.True(t, m.inScenarios(""))
	require.True(t, m.inScenarios("D,B"))
	require.True(t, m.inScenarios("B10"))
	require.True(t, m.inScenarios("C, A1"))
	require.False(t, m.inScenarios("B1"))
	require.False(t, m.inScenarios("D"))
	require.False(t, mutant{}.inScenarios("A"))
}

func TestMutant_RunExpression(t *testing.T) {
	t.Parallel()

	require.Equal(t, `^TestStore$/^pgx-sql$/^TestA2_a\.b\(\)$`,
		mutant{test: "TestStore/pgx-sql/TestA2_a.b()"}.runExpression())
}

func TestEdit_Apply(t *testing.T) {
	t.Parallel()
	const content = "a\n}\n}\nb\n"

	got, err := edit{old: []string{"a", "}"}, new: []string{"c"}}.apply(content)
	require.NoError(t, err)
	require.Equal(t, "c\n}\nb\n", got)

	_, err = edit{file: "x.go", old: []string{"}"}}.apply(content)
	require.ErrorContains(t, err, "occur 2 times in x.go")

	_, err = edit{file: "x.go", old: []string{" b"}}.apply(content)
	require.ErrorContains(t, err, `occur 0 times in x.go, want once; the first is " b"`)
}
