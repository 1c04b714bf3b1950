package services

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"
)

// Where a server came from.
const (
	SourceEnvironment = "env"     // its address was in the environment
	SourceRunning     = "running" // an earlier run started it
	SourceDocker      = "docker"  // started now by docker compose
	SourcePackages    = "debian"  // started now from binaries of this machine, mostly Debian's
)

// Server is one shared server that answered.
type Server struct {
	Name    string `json:"name"`
	Address string `json:"address"` // a DSN for its driver
	Source  string `json:"source"`  // one of the Source constants
	// StartedBy is SourceDocker or SourcePackages, also for a running server, and
	// empty for one from the environment.
	StartedBy string `json:"started_by,omitempty"`
	Version   string `json:"version"` // the server's own words
}

// MissingError says that a service was neither found nor could be started, why, and how to
// get it.
type MissingError struct {
	Service string
	Hint    string
	Reason  error
}

func (e *MissingError) Error() string {
	return fmt.Sprintf("%s is missing: %v. How to get it: %s", e.Service, e.Reason, e.Hint)
}

func (e *MissingError) Unwrap() error { return e.Reason }

// Find finds or starts every shared server, and asks each for its version. What is missing
// is returned beside what was found; err is about everything else, such as an address in the
// environment that does not answer. Unlike a test it also tries again what failed a moment ago.
func Find(ctx context.Context) (servers []Server, missing []*MissingError, err error) {
	servers = []Server{}
	for _, s := range allServices() {
		server, findErr := FindOne(ctx, s.name)
		var lacking *MissingError
		switch {
		case findErr == nil:
			servers = append(servers, server)
		case errors.As(findErr, &lacking):
			missing = append(missing, lacking)
		default:
			err = errors.Join(err, findErr)
		}
	}
	return servers, missing, err
}

// FindOne does the same for the service of one name: PostgreSQL, PgBouncer or MariaDB. Its
// error is a *MissingError if that one is missing.
func FindOne(ctx context.Context, name string) (Server, error) {
	f, err := newFinder()
	if err != nil {
		return Server{}, err
	}
	f.again = true
	for _, s := range allServices() {
		if s.name != name {
			continue
		}
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		server, err := f.find(ctx, s)
		if err != nil {
			return Server{}, err
		}
		if server.Version, err = s.version(ctx, server.Address); err != nil {
			return Server{}, fmt.Errorf("version of %s: %w", s.name, err)
		}
		return server, nil
	}
	return Server{}, fmt.Errorf("no service is called %q", name)
}

// Stop stops what was started by us and keeps its data. It returns the names of the servers
// it stopped; servers from the environment are left alone.
func Stop(ctx context.Context) ([]string, error) {
	f, err := newFinder()
	if err != nil {
		return nil, err
	}
	unlock, err := f.state.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	var (
		stopped []string
		failed  []error
	)
	all := allServices()
	for i := len(all) - 1; i >= 0; i-- { // PgBouncer before its PostgreSQL
		s := all[i]
		err := s.check(ctx)
		if err != nil && !errors.Is(err, errOutdated) {
			continue
		}
		if err := f.stop(ctx, s); err != nil {
			failed = append(failed, fmt.Errorf("stop %s: %w", s.name, err))
			continue
		}
		stopped = append(stopped, s.name)
	}
	return stopped, errors.Join(failed...)
}

// EnvironmentCI is whether a missing service is a failure.
func EnvironmentCI() bool { return os.Getenv("CI") == "true" }

// allServices lists the shared servers in the order in which they are started.
func allServices() []service {
	return []service{postgreSQL(), pgBouncer(), mariaDB()}
}

const (
	// patience bounds everything a single request may take, a download included.
	patience = 15 * time.Minute
	// startup bounds the wait for a server that was started. Crash recovery of a big
	// data directory is what takes long.
	startup = time.Minute
)
