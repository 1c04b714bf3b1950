// Command readme writes the part of README.md between the lines
//
//	<!-- tested-with:start -->
//	<!-- tested-with:end -->
//
// from what the last `make test` ran against (build/services.json) and from the versions in
// go.mod.
//
// With -check it changes nothing and fails if the part is missing or names another version of
// a Go module than go.mod. The versions of the servers are not compared: they differ from one
// machine to the next.
package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	_ "modernc.org/sqlite" // the version of SQLite is asked from it

	"github.com/watermill-contrib/watermill-inbox/tests/services"
)

const (
	start = "<!-- tested-with:start -->"
	end   = "<!-- tested-with:end -->"
)

// Modules whose versions the table tells.
const (
	watermill = "github.com/ThreeDotsLabs/watermill"
	pgx       = "github.com/jackc/pgx/v5"
	sqlite    = "modernc.org/sqlite"
	mysql     = "github.com/go-sql-driver/mysql"
)

func main() {
	check := flag.Bool("check", false, "change nothing; fail if the part is missing or names other module versions")
	readme := flag.String("readme", "README.md", "`file` to write or check")
	found := flag.String("services", filepath.Join("build", "services.json"), "`file` with the servers of the last run")
	flag.Parse()

	run := func() error { return write(*readme, *found) }
	if *check {
		run = func() error { return verify(*readme) }
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "readme:", err)
		os.Exit(1)
	}
}

func write(readme, found string) error {
	text, err := os.ReadFile(readme)
	if err != nil {
		return err
	}
	before, _, after, err := split(string(text))
	if err != nil {
		return fmt.Errorf("%s: %w", readme, err)
	}
	part, err := table(found)
	if err != nil {
		return err
	}
	return os.WriteFile(readme, []byte(before+start+"\n"+part+end+after), 0o644)
}

// verify compares the module versions only, see the command's doc.
func verify(readme string) error {
	text, err := os.ReadFile(readme)
	if err != nil {
		return err
	}
	_, part, _, err := split(string(text))
	if err != nil {
		return fmt.Errorf("%s: %w", readme, err)
	}
	versions, err := moduleVersions()
	if err != nil {
		return err
	}
	var missing []error
	for _, path := range []string{watermill, pgx, mysql, sqlite} {
		if !strings.Contains(part, driver(path, versions)) {
			missing = append(missing, fmt.Errorf("%s does not say %q, which go.mod requires; run `make test readme`",
				readme, driver(path, versions)))
		}
	}
	return errors.Join(missing...)
}

// split cuts the text at the two markers.
func split(text string) (before, part, after string, err error) {
	before, rest, ok := strings.Cut(text, start)
	if ok {
		part, after, ok = strings.Cut(rest, end)
	}
	if !ok {
		err = fmt.Errorf("the lines %s and %s are not there", start, end)
	}
	return before, part, after, err
}

// table has one row for each database that the conformance suite runs on.
func table(found string) (string, error) {
	text, err := os.ReadFile(found)
	if err != nil {
		return "", fmt.Errorf("%w; `make services` writes it", err)
	}
	var servers []services.Server
	if err := json.Unmarshal(text, &servers); err != nil {
		return "", fmt.Errorf("%s: %w", found, err)
	}
	versions, err := moduleVersions()
	if err != nil {
		return "", err
	}
	sqliteVersion, err := askSQLite()
	if err != nil {
		return "", err
	}
	byName := map[string]services.Server{}
	for _, s := range servers {
		byName[s.Name] = s
	}
	var out strings.Builder
	fmt.Fprintf(&out, "Tested with %s and:\n\n", driver(watermill, versions))
	out.WriteString("| database | version | driver | how it ran |\n|---|---|---|---|\n")
	for _, row := range []struct{ service, driver string }{
		{"PostgreSQL", driver(pgx, versions) + ", native and through database/sql"},
		{"PgBouncer", driver(pgx, versions) + ", without prepared statements"},
		{"MariaDB", driver(mysql, versions) + ", through database/sql"},
	} {
		s, ok := byName[row.service]
		if !ok {
			return "", fmt.Errorf("%s is not in %s: the table is written after a run with every service", row.service, found)
		}
		fmt.Fprintf(&out, "| %s | %s | %s | %s |\n", s.Name, shortVersion(s), row.driver, howRun(s))
	}
	fmt.Fprintf(&out, "| SQLite | %s | %s, through database/sql | in the process |\n", sqliteVersion, driver(sqlite, versions))
	return out.String(), nil
}

// shortVersion keeps of a server's own words what stands before its compiler and its machine.
func shortVersion(s services.Server) string {
	version := strings.TrimPrefix(s.Version, s.Name+" ")
	version, _, _ = strings.Cut(version, " on ")
	version, _, _ = strings.Cut(version, "-MariaDB")
	return regexp.MustCompile(`\s*\([^)]*\)`).ReplaceAllString(version, "")
}

func howRun(s services.Server) string {
	switch s.StartedBy {
	case services.SourceDocker:
		return "Docker image"
	case services.SourcePackages:
		if strings.Contains(s.Version, "Debian") {
			return "Debian package"
		}
		return "installed package"
	default:
		return "a server of its own"
	}
}

// driver is a module with its version, as the table names it.
func driver(path string, versions map[string]string) string {
	names := map[string]string{watermill: "Watermill", pgx: "pgx", sqlite: "modernc.org/sqlite", mysql: "go-sql-driver/mysql"}
	return names[path] + " " + versions[path]
}

func moduleVersions() (map[string]string, error) {
	out, err := exec.CommandContext(context.Background(), "go", "list", "-m", "-f", "{{.Path}} {{.Version}}", watermill, pgx, mysql, sqlite).Output()
	if err != nil {
		return nil, fmt.Errorf("go list -m: %w", err)
	}
	versions := map[string]string{}
	for line := range strings.Lines(string(out)) {
		path, version, _ := strings.Cut(strings.TrimSpace(line), " ")
		versions[path] = version
	}
	return versions, nil
}

func askSQLite() (string, error) {
	db, err := sql.Open("sqlite", ":memory:")
	if err != nil {
		return "", err
	}
	defer func() { _ = db.Close() }()
	var version string
	err = db.QueryRowContext(context.Background(), "SELECT sqlite_version()").Scan(&version)
	return version, err
}
