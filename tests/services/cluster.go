package services

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// cluster is one PostgreSQL data directory and the binaries that run it.
type cluster struct {
	bin      string // directory of pg_ctl, initdb and postgres
	dir      string // holds data/ and log
	as       *account
	port     int
	settings []string // "name=value"; later ones win
}

// ownSettings is the file in the data directory that holds our settings.
const ownSettings = "inbox.conf"

// stopMode is one of pg_ctl's shutdown modes.
type stopMode string

const (
	stopFast      stopMode = "fast"      // sessions are cut, the files are clean
	stopImmediate stopMode = "immediate" // like a crash: the next start recovers
)

// findPostgreSQL returns the directory of the server's binaries, and installs them if need be.
func findPostgreSQL(ctx context.Context, f finder) (string, error) {
	look := func() string {
		return findBinaries([]string{
			"/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin",
			"/opt/homebrew/opt/postgresql@*/bin", "/usr/local/opt/postgresql@*/bin",
		}, "pg_ctl", "initdb", "postgres")
	}
	if bin := look(); bin != "" {
		return bin, nil
	}
	if err := f.install(ctx, "postgresql"); err != nil {
		return "", err
	}
	bin := look()
	if bin == "" {
		return "", errors.New("installed, but its binaries are not where they are expected")
	}
	return bin, nil
}

func (c cluster) data() string { return filepath.Join(c.dir, "data") }
func (c cluster) log() string  { return filepath.Join(c.dir, "log") }

func (c cluster) dsn() string {
	return fmt.Sprintf("postgres://postgres@127.0.0.1:%d/postgres?sslmode=disable", c.port)
}

// create makes the data directory unless it is there. An initdb that was interrupted leaves
// nothing that looks finished.
func (c cluster) create(ctx context.Context) error {
	if _, err := os.Stat(c.data()); err == nil {
		return nil
	}
	if err := c.as.own(c.dir); err != nil {
		return err
	}
	fresh := c.data() + ".new"
	if err := os.RemoveAll(fresh); err != nil {
		return err
	}
	// The same text order everywhere, whatever locales the machine has.
	if _, err := run(ctx, c.as, filepath.Join(c.bin, "initdb"), "-D", fresh, "-U", "postgres",
		"-A", "trust", "--encoding=UTF8", "--locale=C"); err != nil {
		return err
	}
	if err := include(filepath.Join(fresh, "postgresql.conf"), ownSettings); err != nil {
		return err
	}
	return os.Rename(fresh, c.data())
}

// include keeps what initdb found out about the machine, such as the kind of shared memory
// that works, and lets our settings win.
func include(file, other string) error {
	f, err := os.OpenFile(file, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(f, "include '%s'\n", other)
	return errors.Join(err, f.Close())
}

// start returns when the server accepts connections. One that runs already is left alone.
func (c cluster) start(ctx context.Context) error {
	if c.running(ctx) {
		return nil
	}
	if err := c.configure(); err != nil {
		return err
	}
	_, err := run(ctx, c.as, filepath.Join(c.bin, "pg_ctl"), "start", "-D", c.data(), "-l", c.log(), "-w",
		"-t", fmt.Sprint(int(startup.Seconds())))
	if err != nil {
		return fmt.Errorf("%w; its log ends with: %s", err, logTail(c.log()))
	}
	return nil
}

func (c cluster) stop(ctx context.Context, mode stopMode) error {
	if !c.running(ctx) {
		return nil
	}
	_, err := run(ctx, c.as, filepath.Join(c.bin, "pg_ctl"), "stop", "-D", c.data(), "-m", string(mode), "-w")
	return err
}

// running removes the mark of a server that was killed and that nobody has waited for yet,
// as happens for long in containers without an init: pg_ctl takes such a process for alive.
func (c cluster) running(ctx context.Context) bool {
	pidFile := filepath.Join(c.data(), "postmaster.pid")
	if isZombie(pidFile) {
		_ = os.Remove(pidFile)
		return false
	}
	_, err := run(ctx, c.as, filepath.Join(c.bin, "pg_ctl"), "status", "-D", c.data())
	return err == nil
}

// configure writes our settings before each start, since they change with the checkout.
func (c cluster) configure() error {
	lines := []string{
		"timezone = 'UTC'", // not the machine's, so that tests see the same everywhere
		"log_timezone = 'UTC'",
		"listen_addresses = '127.0.0.1'",
		fmt.Sprintf("port = %d", c.port),
		"unix_socket_directories = ''",
	}
	for _, setting := range c.settings {
		name, value, ok := strings.Cut(setting, "=")
		if !ok {
			return fmt.Errorf("setting %q is not of the form name=value", setting)
		}
		lines = append(lines, fmt.Sprintf("%s = '%s'", strings.TrimSpace(name),
			strings.ReplaceAll(strings.TrimSpace(value), "'", "''")))
	}
	file := filepath.Join(c.data(), ownSettings)
	if err := os.WriteFile(file, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		return err
	}
	return c.as.chown(file)
}
