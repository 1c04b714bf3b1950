package services

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const pgBouncerPort = 25432

// PgBouncer returns an address of our PostgreSQL through PgBouncer in transaction mode, for
// pgx, as a superuser. Every database of the server is reachable by its name.
//
// It always stands in front of the PostgreSQL that is started here, also while
// INBOX_TEST_POSTGRES names another. Debian's version 1.18 knows no prepared statements:
// use pgx.QueryExecModeExec or pgx.QueryExecModeSimpleProtocol.
func PgBouncer(t testing.TB) string {
	t.Helper()
	return need(t, pgBouncer())
}

func pgBouncer() service {
	return service{
		name:     "PgBouncer",
		env:      "INBOX_TEST_PGBOUNCER",
		port:     pgBouncerPort,
		address:  cluster{port: pgBouncerPort}.dsn(),
		compose:  "pgbouncer",
		packages: []string{"pgbouncer", "postgresql"},
		needs:    []service{postgreSQL()},
		// The mark is that of the server behind it: both must be ours and answer.
		ping: postgreSQL().ping,
		version: func(ctx context.Context, dsn string) (string, error) {
			console, err := pgBouncerConsole(dsn)
			if err != nil {
				return "", err
			}
			version, err := askPostgreSQL(ctx, console, "SHOW VERSION")
			if err != nil { // the console of a bouncer that is not ours may be closed to us
				version = "PgBouncer (version not told)"
			}
			behind, err := askPostgreSQL(ctx, dsn, "SHOW server_version")
			if err != nil {
				return "", err
			}
			return fmt.Sprintf("%s in front of PostgreSQL %s", version, behind), nil
		},
		start: startPgBouncer,
		stop: func(ctx context.Context, _ finder) error {
			console, err := pgBouncerConsole(cluster{port: pgBouncerPort}.dsn())
			if err != nil {
				return err
			}
			_, err = askPostgreSQL(ctx, console, "SHUTDOWN")
			return stopped(ctx, pgBouncerPort, err)
		},
	}
}

func startPgBouncer(ctx context.Context, f finder) error {
	look := func() string { return findBinaries([]string{"/usr/sbin", "/usr/local/sbin"}, "pgbouncer") }
	bin := look()
	if bin == "" {
		if err := f.install(ctx, "pgbouncer"); err != nil {
			return err
		}
		if bin = look(); bin == "" {
			return errors.New("installed, but pgbouncer is not where it is expected")
		}
	}
	as, err := findAccount("postgres")
	if err != nil {
		return err
	}
	dir := f.state.path("pgbouncer")
	if err := as.own(dir); err != nil {
		return err
	}
	config := filepath.Join(dir, "pgbouncer.ini")
	for file, text := range map[string]string{
		config:                          pgBouncerConfig(dir),
		filepath.Join(dir, "users.txt"): `"postgres" ""` + "\n",
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			return err
		}
		if err := as.chown(file); err != nil {
			return err
		}
	}
	// The port is closed, so whoever wrote it has ended, even if a zombie keeps its number.
	if err := os.Remove(filepath.Join(dir, "pid")); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if _, err := run(ctx, as, filepath.Join(bin, "pgbouncer"), "-d", config); err != nil {
		return fmt.Errorf("%w; its log ends with: %s", err, logTail(filepath.Join(dir, "log")))
	}
	return nil
}

// pgBouncerConfig is written so that what tests depend on is not hidden: search_path is not
// among the ignored parameters, a client that asks for one is refused.
func pgBouncerConfig(dir string) string {
	return strings.NewReplacer("DIR", dir, "PORT", fmt.Sprint(pgBouncerPort), "SERVER", fmt.Sprint(postgreSQLPort)).
		Replace(`[databases]
* = host=127.0.0.1 port=SERVER

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = PORT
unix_socket_dir =
logfile = DIR/log
pidfile = DIR/pid
auth_type = trust
auth_file = DIR/users.txt
admin_users = postgres
pool_mode = transaction
max_client_conn = 1000
default_pool_size = 50
ignore_startup_parameters = extra_float_digits
; tests drop their databases, which an idle server connection would block
server_idle_timeout = 10
; tests stop and start servers
server_login_retry = 1
`)
}

// pgBouncerConsole is the address of the admin console behind the same port.
func pgBouncerConsole(dsn string) (string, error) {
	console, err := url.Parse(dsn)
	if err != nil {
		return "", fmt.Errorf("address of PgBouncer: %w", err)
	}
	console.Path = "/pgbouncer"
	return console.String(), nil
}
