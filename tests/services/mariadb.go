package services

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/go-sql-driver/mysql"
)

const mariaDBPort = 25433

// MariaDB returns the address of the shared MariaDB, for go-sql-driver/mysql, as root in the
// database "inbox". It carries no parameters: use mysql.ParseDSN and set what the test needs.
func MariaDB(t testing.TB) string {
	t.Helper()
	return need(t, mariaDB())
}

func mariaDB() service {
	address := fmt.Sprintf("root@tcp(127.0.0.1:%d)/inbox", mariaDBPort)
	return service{
		name:     "MariaDB",
		env:      "INBOX_TEST_MARIADB",
		port:     mariaDBPort,
		address:  address,
		compose:  "mariadb",
		packages: []string{"mariadb-server"},
		// report_host is free text, shown to nobody but replicas.
		ping: func(ctx context.Context, dsn string) (string, error) {
			return askMariaDB(ctx, dsn, "SELECT COALESCE(@@report_host, '')")
		},
		version: func(ctx context.Context, dsn string) (string, error) {
			return askMariaDB(ctx, dsn, "SELECT CONCAT('MariaDB ', version(), ', ', @@version_comment)")
		},
		start: startMariaDB,
		stop: func(ctx context.Context, _ finder) error {
			_, err := askMariaDB(ctx, address, "SHUTDOWN")
			return stopped(ctx, mariaDBPort, err)
		},
	}
}

// findMariaDB returns the paths of the server and of the program that makes a data directory, and installs them if need
// be.
func findMariaDB(ctx context.Context, f finder) (server, installDB string, err error) {
	look := func(name string) string {
		dir := findBinaries([]string{"/usr/sbin", "/usr/bin", "/usr/local/sbin", "/opt/homebrew/bin"}, name)
		if dir == "" {
			return ""
		}
		return filepath.Join(dir, name)
	}
	if look("mariadbd") == "" || look("mariadb-install-db") == "" {
		if err := f.install(ctx, "mariadb-server"); err != nil {
			return "", "", err
		}
	}
	server, installDB = look("mariadbd"), look("mariadb-install-db")
	if server == "" || installDB == "" {
		return "", "", errors.New("installed, but mariadbd and mariadb-install-db are not where they are expected")
	}
	return server, installDB, nil
}

func startMariaDB(ctx context.Context, f finder) error {
	server, installDB, err := findMariaDB(ctx, f)
	if err != nil {
		return err
	}
	as, err := findAccount("mysql")
	if err != nil {
		return err
	}
	version, err := run(ctx, nil, server, "--no-defaults", "--version")
	if err != nil {
		return err
	}
	series := regexp.MustCompile(`Ver (\d+\.\d+)`).FindStringSubmatch(version)
	if series == nil {
		return fmt.Errorf("%s does not tell its version: %s", server, version)
	}
	dir := f.state.path("mariadb-" + series[1])
	if err := as.own(dir); err != nil {
		return err
	}
	data := filepath.Join(dir, "data")
	if err := createMariaDB(ctx, as, installDB, data); err != nil {
		return err
	}
	// Run at every start, before the first connection is accepted.
	initFile := filepath.Join(dir, "init.sql")
	if err := os.WriteFile(initFile, []byte("CREATE DATABASE IF NOT EXISTS inbox;\n"), 0o600); err != nil {
		return err
	}
	if err := as.chown(initFile); err != nil {
		return err
	}
	log := filepath.Join(dir, "log")
	err = daemon(ctx, as, log, server, "--no-defaults", "--datadir="+data,
		"--socket="+filepath.Join(dir, "socket"), "--pid-file="+filepath.Join(dir, "pid"),
		"--bind-address=127.0.0.1", fmt.Sprintf("--port=%d", mariaDBPort),
		"--report-host="+mark, "--init-file="+initFile, "--max-connections=500", "--skip-name-resolve",
		// What Debian's own configuration sets.
		"--character-set-server=utf8mb4", "--collation-server=utf8mb4_general_ci")
	if err != nil {
		return err
	}
	if err := mariaDB().wait(ctx, startup); err != nil {
		return fmt.Errorf("%w; its log ends with: %s", err, logTail(log))
	}
	return nil
}

// createMariaDB makes the data directory unless it is there. An interrupted one leaves
// nothing that looks finished.
func createMariaDB(ctx context.Context, as *account, installDB, data string) error {
	if _, err := os.Stat(data); err == nil {
		return nil
	}
	fresh := data + ".new"
	var err error
	// The script failed once in some hundred runs on a machine under full load; it has nothing to do with what is tested.
	for range 3 {
		if err = os.RemoveAll(fresh); err != nil {
			return err
		}
		_, err = run(ctx, as, installDB, "--no-defaults", "--datadir="+fresh,
			"--auth-root-authentication-method=normal", "--skip-test-db", "--innodb-use-native-aio=0")
		if err == nil {
			return os.Rename(fresh, data)
		}
	}
	return err
}

func askMariaDB(ctx context.Context, dsn, query string) (string, error) {
	config, err := mysql.ParseDSN(dsn)
	if err != nil {
		return "", err
	}
	config.Logger = &mysql.NopLogger{} // it would print that a server is not up yet
	connector, err := mysql.NewConnector(config)
	if err != nil {
		return "", err
	}
	db := sql.OpenDB(connector)
	defer func() { _ = db.Close() }()
	var answer string
	err = db.QueryRowContext(ctx, query).Scan(&answer)
	return answer, err
}
