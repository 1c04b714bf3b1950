package services

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"testing"
)

// Instance is a private server of one test, which may stop and start it.
//
// It ends with the test, and also with the test's process: a watchdog stops it and removes
// its data when the process is killed.
type Instance struct {
	t      testing.TB
	server privateServer
	place
}

// privateServer is a server whose data directory is there.
type privateServer interface {
	start(ctx context.Context) error
	stop(ctx context.Context, mode stopMode) error
}

// place is where a server is and where it is reached.
type place struct {
	dir, logFile, address string
	port                  int
}

// StartPostgreSQL starts a private PostgreSQL on a port of its own, from the binaries of this
// machine. Settings ("name=value") are written to its configuration; by default it has
// fsync=off and max_connections=100.
//
// fsync=off is safe against Kill, after which the operating system still has every write; it
// would not be against a loss of power.
func StartPostgreSQL(t testing.TB, settings ...string) *Instance {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c, err := privateCluster(ctx, settings)
	if err != nil {
		giveUp(t, postgreSQL().missing(err))
	}
	// As the server's own user, and with its own means: the data directory is closed to others.
	guard(t, c.as, c.dir, filepath.Join(c.bin, "pg_ctl"), "stop", "-D", c.data(), "-m", "immediate")
	if err := c.create(ctx); err != nil {
		t.Fatalf("services: create a private PostgreSQL: %v", err)
	}
	return begin(t, ctx, c.port, func(port int) (privateServer, place) {
		c.port = port
		return c, place{dir: c.dir, logFile: c.log(), address: c.dsn(), port: port}
	})
}

// begin starts a server on the port, or on another one if it is taken meanwhile.
func begin(t testing.TB, ctx context.Context, port int, at func(port int) (privateServer, place)) *Instance { //nolint:revive // t comes first
	t.Helper()
	for try := 1; ; try++ {
		server, where := at(port)
		err := server.start(ctx)
		if err == nil {
			return &Instance{t: t, server: server, place: where}
		}
		// Another process may have taken the port since it was looked for.
		if try == 3 {
			t.Fatalf("services: start a private server: %v", err)
		}
		if port, err = freePort(ctx); err != nil {
			t.Fatalf("services: start a private server: %v", err)
		}
	}
}

// DSN is its address for pgx or go-sql-driver/mysql, as a superuser. It stays the same after
// Stop and Start.
func (i *Instance) DSN() string { return i.address }

// Stop stops it as an operator would: sessions are cut, the files are left clean.
func (i *Instance) Stop() { i.t.Helper(); i.stop(stopFast) }

// Kill stops it as a crash would: nothing is flushed, the next Start recovers.
func (i *Instance) Kill() { i.t.Helper(); i.stop(stopImmediate) }

func (i *Instance) stop(mode stopMode) {
	i.t.Helper()
	if err := i.server.stop(context.WithoutCancel(i.t.Context()), mode); err != nil {
		i.t.Fatalf("services: stop the private server: %v", err)
	}
}

// Start starts it again and returns when it accepts connections.
func (i *Instance) Start() {
	i.t.Helper()
	if err := i.server.start(context.WithoutCancel(i.t.Context())); err != nil {
		i.t.Fatalf("services: start the private server again: %v", err)
	}
}

// Log returns the end of the server's log, for a test's failure message.
func (i *Instance) Log() string { return logTail(i.logFile) }

func privateCluster(ctx context.Context, settings []string) (cluster, error) {
	f, err := newFinder()
	if err != nil {
		return cluster{}, err
	}
	unlock, err := f.state.lock(ctx) // the binaries may have to be installed
	if err != nil {
		return cluster{}, err
	}
	bin, err := findPostgreSQL(ctx, f)
	unlock()
	if err != nil {
		return cluster{}, err
	}
	as, err := findAccount("postgres")
	if err != nil {
		return cluster{}, err
	}
	port, err := freePort(ctx)
	if err != nil {
		return cluster{}, err
	}
	// Not t.TempDir: its parent is closed to the user postgres.
	dir, err := os.MkdirTemp("", "watermill-inbox-postgresql-")
	if err != nil {
		return cluster{}, err
	}
	return cluster{
		bin: bin, dir: dir, as: as, port: port,
		settings: append([]string{"fsync=off", "max_connections=100"}, settings...),
	}, as.chown(dir)
}

// guard ends a server with the test by a command, and removes its directory. A shell waits for
// the end of its input, whose other end this process holds: it closes it in the cleanup, and
// the system does if the process is killed or panics, where no cleanup runs.
func guard(t testing.TB, as *account, dir string, stop ...string) {
	t.Helper()
	const script = `read -r line; dir="$1"; shift; "$@"; rm -rf "$dir"`
	cmd := command(context.WithoutCancel(t.Context()), as, "/bin/sh", append([]string{"-c", script, "sh", dir}, stop...)...)
	life, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		_ = os.RemoveAll(dir)
		t.Fatalf("services: guard of a private server: %v", err)
	}
	t.Cleanup(func() {
		_ = life.Close()
		_ = cmd.Wait()
		_ = os.RemoveAll(dir) // /tmp is sticky: as root, in case the shell could not
	})
}

// freePort looks below the range from which the system takes ports for outgoing connections.
// In that range a client that tries to reach a stopped server can be given the server's own
// port: it then connects to itself, and the server cannot start again.
func freePort(ctx context.Context) (int, error) {
	for range 200 {
		port := 26000 + rand.IntN(6000)
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", loopback(port))
		if err != nil {
			continue
		}
		return port, l.Close()
	}
	return 0, errors.Join(fmt.Errorf("no free port between 26000 and 32000"), ctx.Err())
}
