package services

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// StartMariaDB starts a private MariaDB on a port of its own, from the binaries of this
// machine. Settings ("name=value") are options of mariadbd; by default it has
// innodb-flush-log-at-trx-commit=2, which is safe against Kill, after which the operating
// system still has every write; it would not be against a loss of power.
func StartMariaDB(t testing.TB, settings ...string) *Instance {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	m, port, err := privateMariaDB(ctx)
	if err != nil {
		giveUp(t, mariaDB().missing(err))
	}
	for _, setting := range settings {
		m.options = append(m.options, "--"+setting)
	}
	guard(t, m.as, m.dir, "/bin/sh", "-c", `kill -9 "$(cat "$1")"`, "sh", m.pidFile())
	if err := createMariaDB(ctx, m.as, m.installDB, m.data()); err != nil {
		t.Fatalf("services: create a private MariaDB: %v", err)
	}
	return begin(t, ctx, port, func(port int) (privateServer, place) {
		m.port = port
		return m, place{dir: m.dir, logFile: m.log(), address: m.dsn(), port: port}
	})
}

func privateMariaDB(ctx context.Context) (*mariadbd, int, error) {
	f, err := newFinder()
	if err != nil {
		return nil, 0, err
	}
	unlock, err := f.state.lock(ctx) // the binaries may have to be installed
	if err != nil {
		return nil, 0, err
	}
	server, installDB, err := findMariaDB(ctx, f)
	unlock()
	if err != nil {
		return nil, 0, err
	}
	as, err := findAccount("mysql")
	if err != nil {
		return nil, 0, err
	}
	port, err := freePort(ctx)
	if err != nil {
		return nil, 0, err
	}
	// Not t.TempDir: its parent is closed to the user mysql.
	dir, err := os.MkdirTemp("", "watermill-inbox-mariadb-")
	if err != nil {
		return nil, 0, err
	}
	return &mariadbd{server: server, installDB: installDB, dir: dir, as: as}, port, as.chown(dir)
}

// mariadbd is a private server, a child of this process.
type mariadbd struct {
	server, installDB string
	dir               string // holds data/, log and pid
	as                *account
	port              int
	options           []string

	process *exec.Cmd
}

func (m *mariadbd) data() string    { return filepath.Join(m.dir, "data") }
func (m *mariadbd) log() string     { return filepath.Join(m.dir, "log") }
func (m *mariadbd) pidFile() string { return filepath.Join(m.dir, "pid") }
func (m *mariadbd) dsn() string     { return fmt.Sprintf("root@tcp(%s)/", loopback(m.port)) }

// start returns when the server accepts connections, or ended.
func (m *mariadbd) start(ctx context.Context) error {
	log, err := os.OpenFile(m.log(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	cmd := command(context.WithoutCancel(ctx), m.as, m.server, append([]string{
		"--no-defaults", "--datadir=" + m.data(), "--socket=" + filepath.Join(m.dir, "socket"),
		"--pid-file=" + filepath.Join(m.dir, "server.pid"), "--bind-address=127.0.0.1", fmt.Sprintf("--port=%d", m.port),
		"--skip-name-resolve", "--innodb-flush-log-at-trx-commit=2",
		"--innodb-use-native-aio=0", // many servers of one user may meet its limit of locked memory
	}, m.options...)...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return err
	}
	m.process = cmd
	// Written here, not by the server: it may be killed before it gets to that.
	if err := os.WriteFile(m.pidFile(), []byte(strconv.Itoa(cmd.Process.Pid)), 0o644); err != nil {
		return err
	}
	for deadline := time.Now().Add(startup); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if _, err = askMariaDB(ctx, m.dsn(), "SELECT 1"); err == nil {
			return nil
		}
		if isZombie(m.pidFile()) {
			break
		}
	}
	return fmt.Errorf("%w; its log ends with: %s", errors.Join(err, m.stop(ctx, stopImmediate)), logTail(m.log()))
}

// stop returns when the process has ended. SIGTERM cuts sessions and leaves clean files.
func (m *mariadbd) stop(_ context.Context, mode stopMode) error {
	if m.process == nil {
		return nil
	}
	signal := syscall.SIGTERM
	if mode == stopImmediate {
		signal = syscall.SIGKILL
	}
	err := m.process.Process.Signal(signal)
	_ = m.process.Wait() // killed, in one of the two cases
	m.process = nil
	_ = os.Remove(m.pidFile()) // its number may soon be another process's
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	return err
}
