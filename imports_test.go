package inbox_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	modulePath    = "github.com/watermill-contrib/watermill-inbox"
	watermillPath = "github.com/ThreeDotsLabs/watermill"
)

// What a user's build gets by importing package inbox: Watermill and what Watermill needs itself. Drivers, metrics and
// test helpers stay with the packages that want them.
func TestTheRootPackageImportsOnlyWatermill(t *testing.T) {
	t.Parallel()
	root := find(t, listed(t, modulePath), modulePath)
	var direct []string
	for _, path := range root.Imports {
		if !isStandard(path) {
			require.True(t, below(path, watermillPath), "package inbox imports %s", path)
			direct = append(direct, path)
		}
	}
	require.NotEmpty(t, direct)

	brought := paths(listed(t, direct...))
	for _, p := range listed(t, modulePath) {
		if !p.Standard && p.ImportPath != modulePath {
			require.Contains(t, brought, p.ImportPath, "package inbox brings it, Watermill does not")
		}
	}
	requireNoDatabase(t, modulePath)
}

func TestTheEngineImportsNoDriver(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"/sqlinbox/internal/engine", "/sqlinbox/internal/dialect"} {
		for _, path := range find(t, listed(t, modulePath+name), modulePath+name).Imports {
			allowed := isStandard(path) || below(path, watermillPath) || path == modulePath || below(path, "github.com/hashicorp/golang-lru")
			require.True(t, allowed, "%s imports %s", name, path)
		}
		requireNoDatabase(t, modulePath+name)
	}
}

// Identities by a broker's own means live in packages of their own, and bring no database either.
func TestBrokerIdentitiesImportNoDriver(t *testing.T) {
	t.Parallel()
	requireNoDatabase(t, modulePath+"/brokerid/kafka")
	for _, p := range listed(t, modulePath+"/brokerid/kafka") {
		require.False(t, below(p.ImportPath, modulePath+"/sqlinbox"), p.ImportPath)
	}
}

// requireNoDatabase finds drivers, and database/sql, in everything that a package brings. (database/sql/driver is there
// by github.com/google/uuid, which Watermill needs.)
func requireNoDatabase(t *testing.T, pkg string) {
	t.Helper()
	for _, p := range listed(t, pkg) {
		require.NotEqual(t, "database/sql", p.ImportPath, "in the closure of %s", pkg)
		for _, driver := range []string{
			"github.com/jackc/pgx", "github.com/lib/pq", "github.com/go-sql-driver/mysql", "modernc.org/sqlite", "github.com/mattn/go-sqlite3",
		} {
			require.False(t, below(p.ImportPath, driver), "%s is in the closure of %s", p.ImportPath, pkg)
		}
	}
}

type listedPackage struct {
	ImportPath string
	Standard   bool
	Imports    []string // of the files that are no tests
}

// listed gives packages and everything they bring, without their tests.
func listed(t *testing.T, packages ...string) []listedPackage {
	t.Helper()
	args := append([]string{"list", "-deps", "-json=ImportPath,Standard,Imports"}, packages...)
	cmd := exec.CommandContext(t.Context(), "go", args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(t, err, stderr.String())
	var list []listedPackage
	for decoder := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listedPackage
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			return list
		} else if err != nil {
			require.NoError(t, err)
		}
		list = append(list, p)
	}
}

func find(t *testing.T, list []listedPackage, path string) listedPackage {
	t.Helper()
	at := slices.IndexFunc(list, func(p listedPackage) bool { return p.ImportPath == path })
	require.GreaterOrEqual(t, at, 0, path)
	return list[at]
}

func paths(list []listedPackage) []string {
	var all []string
	for _, p := range list {
		all = append(all, p.ImportPath)
	}
	return all
}

// isStandard tells the standard library by the first element, which has no dot.
func isStandard(path string) bool {
	first, _, _ := strings.Cut(path, "/")
	return !strings.Contains(first, ".")
}

func below(path, root string) bool { return path == root || strings.HasPrefix(path, root+"/") }
