package dialect

import (
	"embed"
	"fmt"
	"strings"
)

// Migration is one numbered, reversible step of the schema.
type Migration struct {
	Version  int
	Name     string
	Up, Down []string // statements, with {inbox} and the like for the tables
}

//go:embed migrations
var files embed.FS

// mustLoad reads the migrations of a folder, NNN_name.up.sql and .down.sql, numbered from 1 without a gap. The files
// are part of the program: a bad one is a bug that every test finds.
func mustLoad(folder string) []Migration {
	entries, err := files.ReadDir("migrations/" + folder)
	if err != nil {
		panic(err)
	}
	var migrations []Migration
	for _, entry := range entries { // sorted by name
		base, ok := strings.CutSuffix(entry.Name(), ".up.sql")
		if !ok {
			continue
		}
		version := len(migrations) + 1
		name, ok := strings.CutPrefix(base, fmt.Sprintf("%03d_", version))
		if !ok {
			panic(fmt.Sprintf("migrations/%s/%s: expected number %03d", folder, entry.Name(), version))
		}
		migrations = append(migrations, Migration{
			Version: version,
			Name:    name,
			Up:      statementsOf(folder, entry.Name()),
			Down:    statementsOf(folder, base+".down.sql"),
		})
	}
	return migrations
}

// statementsOf splits a file at the lines that end with a semicolon.
func statementsOf(folder, file string) []string {
	content, err := files.ReadFile("migrations/" + folder + "/" + file)
	if err != nil {
		panic(err)
	}
	var statements []string
	var statement strings.Builder
	for line := range strings.Lines(string(content)) {
		trimmed := strings.TrimRight(line, "\n ")
		if end, ok := strings.CutSuffix(trimmed, ";"); ok && !strings.HasPrefix(trimmed, "--") {
			statement.WriteString(end)
			statements = append(statements, strings.TrimSpace(statement.String()))
			statement.Reset()
			continue
		}
		statement.WriteString(line)
	}
	return statements
}
