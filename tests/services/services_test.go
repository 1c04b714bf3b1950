package services

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

func TestPostgreSQL(t *testing.T) {
	t.Parallel()
	dsn := PostgreSQL(t)
	for setting, want := range map[string]string{
		"is_superuser": "on",
		"fsync":        "on", // what crash tests and benchmarks rely on
	} {
		got, err := askPostgreSQL(t.Context(), dsn, "SHOW "+setting)
		require.NoError(t, err)
		require.Equal(t, want, got, setting)
	}
}

func TestPgBouncer(t *testing.T) {
	t.Parallel()
	dsn := PgBouncer(t)
	config, err := pgx.ParseConfig(dsn)
	require.NoError(t, err)
	config.DefaultQueryExecMode = pgx.QueryExecModeExec
	conn, err := pgx.ConnectConfig(t.Context(), config)
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close(context.Background())) }()
	var sum int
	require.NoError(t, conn.QueryRow(t.Context(), "SELECT $1::int + $2::int", 19, 23).Scan(&sum))
	require.Equal(t, 42, sum)

	if os.Getenv("INBOX_TEST_PGBOUNCER") != "" {
		return // its console may be closed to us
	}
	console, err := pgBouncerConsole(dsn)
	require.NoError(t, err)
	version, err := askPostgreSQL(t.Context(), console, "SHOW VERSION")
	require.NoError(t, err)
	require.Contains(t, version, "PgBouncer")
}

func TestMariaDB(t *testing.T) {
	t.Parallel()
	db, err := sql.Open("mysql", MariaDB(t))
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close()) }()
	var version string
	require.NoError(t, db.QueryRowContext(t.Context(), "SELECT version()").Scan(&version))
	require.Contains(t, version, "MariaDB")
}

func TestStartPostgreSQL_StopsAndStartsAgain(t *testing.T) {
	t.Parallel()
	pg := StartPostgreSQL(t, "max_connections=17")
	ask := func(sql string) string {
		t.Helper()
		answer, err := askPostgreSQL(t.Context(), pg.DSN(), sql)
		require.NoError(t, err, pg.Log())
		return answer
	}
	require.Equal(t, "17", ask("SHOW max_connections"))
	require.Equal(t, "1", ask("CREATE TABLE kept (n int); INSERT INTO kept VALUES (1); SELECT 1"))

	for name, down := range map[string]func(){"stopped": pg.Stop, "killed": pg.Kill} {
		down()
		_, err := askPostgreSQL(t.Context(), pg.DSN(), "SELECT 1")
		require.ErrorContains(t, err, "connection refused", name)
		pg.Start()
		require.Equal(t, "1", ask("SELECT count(*) FROM kept"), name)
	}
}

func TestStartMariaDB_StopsAndStartsAgain(t *testing.T) {
	t.Parallel()
	server := StartMariaDB(t, "max-connections=17")
	ask := func(sql string) string {
		t.Helper()
		answer, err := askMariaDB(t.Context(), server.DSN(), sql)
		require.NoError(t, err, server.Log())
		return answer
	}
	require.Equal(t, "17", ask("SELECT @@max_connections"))
	db, err := sql.Open("mysql", server.DSN())
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close()) }()
	for _, query := range []string{"CREATE DATABASE kept", "CREATE TABLE kept.t (n INT) ENGINE = InnoDB", "INSERT INTO kept.t VALUES (1)"} {
		_, err = db.ExecContext(t.Context(), query)
		require.NoError(t, err)
	}

	for name, down := range map[string]func(){"stopped": server.Stop, "killed": server.Kill} {
		down()
		_, err := askMariaDB(t.Context(), server.DSN(), "SELECT 1")
		require.ErrorContains(t, err, "connection refused", name)
		server.Start()
		require.Equal(t, "1", ask("SELECT count(*) FROM kept.t"), name)
	}
}

func TestStartMariaDB_EndsWithTheProcess(t *testing.T) {
	endsWithTheProcess(t, func(t *testing.T) *Instance { return StartMariaDB(t) })
}

func TestStartPostgreSQL_EndsWithTheProcess(t *testing.T) {
	endsWithTheProcess(t, func(t *testing.T) *Instance { return StartPostgreSQL(t) })
}

// endsWithTheProcess kills a process that has started a private server.
func endsWithTheProcess(t *testing.T, start func(*testing.T) *Instance) {
	t.Parallel()
	if os.Getenv("INBOX_TEST_CHILD") != "" {
		pg := start(t)
		fmt.Printf("port=%d dir=%s\n", pg.port, pg.dir)
		<-t.Context().Done() // the parent kills this process
		return
	}
	_ = start(t) // skips here rather than in the child

	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), "INBOX_TEST_CHILD=1")
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	var port int
	var dir string
	for lines := bufio.NewScanner(out); port == 0 && lines.Scan(); {
		_, _ = fmt.Sscanf(lines.Text(), "port=%d dir=%s", &port, &dir)
	}
	require.NotZero(t, port, "the child printed no port")
	require.DirExists(t, dir)
	require.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait()

	require.Eventually(t, func() bool {
		_, err := os.Stat(dir)
		return os.IsNotExist(err) && !isOpen(t.Context(), port)
	}, 30*time.Second, 50*time.Millisecond, "it still runs, or its data is still there")
}

func TestComposeFileAgreesWithTheCode(t *testing.T) {
	t.Parallel()
	for _, s := range allServices() {
		require.Contains(t, composeFile, "\n  "+s.compose+":\n")
		require.Contains(t, composeFile, fmt.Sprintf("127.0.0.1:%d:", s.port), s.name)
	}
	require.Contains(t, composeFile, "cluster_name="+mark)
	require.Contains(t, composeFile, "--report-host="+mark)
	for line := range strings.Lines(pgBouncerConfig("/")) {
		name, _, ok := strings.Cut(line, " =")
		if ok && !strings.HasPrefix(name, "*") && name != "logfile" && name != "pidfile" {
			require.Contains(t, composeFile, "      "+name+" =", "PgBouncer's setting is missing")
		}
	}
}

func TestMissingErrorTellsHowToGetIt(t *testing.T) {
	t.Parallel()
	cause := errors.New("no network\nat all")
	err := mariaDB().missing(fmt.Errorf("debian: %w", cause))
	require.ErrorIs(t, err, cause)
	require.Equal(t, "MariaDB is missing: debian: no network; at all. How to get it: set INBOX_TEST_MARIADB to the "+
		"address of a server, or start a Docker engine, or as root apt-get install mariadb-server", err.Error())
}

func TestState_LockIsHeldByOne(t *testing.T) {
	t.Parallel()
	s := state(t.TempDir())
	unlock, err := s.lock(t.Context())
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 250*time.Millisecond)
	defer cancel()
	_, err = s.lock(ctx)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	unlock()
	unlock, err = s.lock(t.Context())
	require.NoError(t, err)
	unlock()
}

func TestState_RemembersAFailureForAWhile(t *testing.T) {
	t.Parallel()
	s := state(t.TempDir())
	tries := 0
	try := func(result error) func() error {
		return func() error { tries++; return result }
	}
	require.Error(t, s.remember(t.Context(), "x", false, try(errors.New("no network"))))
	require.ErrorContains(t, s.remember(t.Context(), "x", false, try(nil)), "no network")
	require.Equal(t, 1, tries, "tried again at once")
	require.NoError(t, s.remember(t.Context(), "x", true, try(nil)))
	require.NoError(t, s.remember(t.Context(), "x", false, try(nil)))
	require.Equal(t, 3, tries)
}

func TestNumber(t *testing.T) {
	t.Parallel()
	require.Equal(t, 15, number("/usr/lib/postgresql/15/bin"))
	require.Equal(t, 9, number("/usr/lib/postgresql/9.6/bin"))
	require.Equal(t, 17, number("postgres (PostgreSQL) 17.2"))
	require.Zero(t, number("/usr/bin"))
}
