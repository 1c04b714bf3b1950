package services

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"
)

// mark is what our servers carry in their own settings. The number is raised whenever the
// settings change: a server that an older checkout started is then stopped and started anew.
const (
	markPrefix = "watermill-inbox-tests-"
	mark       = markPrefix + "1"
)

var (
	errClosed   = errors.New("nothing listens")
	errOutdated = errors.New("was started with older settings")
	errForeign  = errors.New("port is used by a server that is not ours")
)

// service is one kind of server: how it is asked, started and stopped. It holds no state.
type service struct {
	name     string
	env      string // variable that may hold its address
	port     int    // where ours listens, on loopback
	address  string // DSN of ours
	compose  string // its name in compose.yaml
	packages []string
	needs    []service // ours, started before it

	ping    func(ctx context.Context, dsn string) (mark string, err error)
	version func(ctx context.Context, dsn string) (string, error)
	// start starts it from installed binaries, and install gets them where they are missing.
	start func(ctx context.Context, f finder) error
	stop  func(ctx context.Context, f finder) error
}

// check is nil if ours runs; errClosed, errOutdated and errForeign tell other cases apart. Any
// other error comes from a server that listens and does not answer as it should.
func (s service) check(ctx context.Context) error {
	pingCtx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	got, err := s.ping(pingCtx, s.address)
	switch {
	case err != nil && !isOpen(ctx, s.port):
		return fmt.Errorf("%w: %w", errClosed, err)
	case err != nil:
		return err
	case got == mark:
		return nil
	case strings.HasPrefix(got, markPrefix):
		return errOutdated
	default:
		return fmt.Errorf("%w: %s", errForeign, loopback(s.port))
	}
}

// wait returns as soon as ours answers.
func (s service) wait(ctx context.Context, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		err := s.check(ctx)
		if err == nil || errors.Is(err, errForeign) || errors.Is(err, errOutdated) {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("does not answer: %w", err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// finder goes through the places where a server may come from.
type finder struct {
	state state
	again bool // also what was remembered as failed
}

func newFinder() (finder, error) {
	st, err := openState()
	return finder{state: st}, err
}

// find returns the server of the service and starts it if necessary. A server that runs is
// found without a lock; only one process at a time starts any.
func (f finder) find(ctx context.Context, s service) (Server, error) {
	if address := os.Getenv(s.env); address != "" {
		pingCtx, cancel := context.WithTimeout(ctx, 30*time.Second)
		defer cancel()
		if _, err := s.ping(pingCtx, address); err != nil {
			return Server{}, fmt.Errorf("%s, the address in %s, does not answer: %w", s.name, s.env, err)
		}
		return Server{Name: s.name, Address: address, Source: SourceEnvironment}, nil
	}
	if s.check(ctx) == nil {
		return f.running(s), nil
	}
	unlock, err := f.state.lock(ctx)
	if err != nil {
		return Server{}, err
	}
	defer unlock()
	return f.start(ctx, s)
}

// start is find's second half, under the lock.
func (f finder) start(ctx context.Context, s service) (Server, error) {
	found := s.check(ctx)
	switch {
	case found == nil: // another process was faster
		return f.running(s), nil
	case errors.Is(found, errForeign):
		return Server{}, s.missing(found)
	case errors.Is(found, errOutdated):
		if err := f.stopOutdated(ctx, s); err != nil {
			return Server{}, s.missing(fmt.Errorf("stop the one with older settings: %w", err))
		}
		found = errClosed
	}
	for _, needed := range s.needs {
		if _, err := f.start(ctx, needed); err != nil {
			var lacking *MissingError
			if errors.As(err, &lacking) {
				err = lacking.Reason
			}
			return Server{}, s.missing(fmt.Errorf("it needs our own %s: %w", needed.name, err))
		}
	}
	if !errors.Is(found, errClosed) { // it recovers from a crash, or misses what was just started
		if err := s.wait(ctx, startup); err != nil {
			return Server{}, s.missing(fmt.Errorf("what listens on %s %w", loopback(s.port), err))
		}
		return f.running(s), nil
	}
	var reasons []error
	for _, way := range []struct {
		name  string
		start func(context.Context, service) error
	}{
		{SourceDocker, f.composeUp},
		{SourcePackages, func(ctx context.Context, s service) error { return s.start(ctx, f) }},
	} {
		err := way.start(ctx, s)
		if err == nil {
			err = s.wait(ctx, startup)
		}
		if err == nil {
			f.state.write(s.compose+".started-by", way.name)
			return Server{Name: s.name, Address: s.address, Source: way.name, StartedBy: way.name}, nil
		}
		reasons = append(reasons, fmt.Errorf("%s: %w", way.name, err))
	}
	return Server{}, s.missing(errors.Join(reasons...))
}

func (f finder) running(s service) Server {
	return Server{
		Name: s.name, Address: s.address, Source: SourceRunning,
		StartedBy: f.state.read(s.compose + ".started-by"),
	}
}

func (f finder) stop(ctx context.Context, s service) error {
	if f.state.read(s.compose+".started-by") == SourceDocker {
		return f.composeStop(ctx, s)
	}
	return s.stop(ctx, f)
}

// stopOutdated also stops what stands in front of the service. It shows the mark of what is
// behind it, so nobody would see its own older settings afterwards.
func (f finder) stopOutdated(ctx context.Context, s service) error {
	for _, other := range allServices() {
		for _, needed := range other.needs {
			if needed.name == s.name && !errors.Is(other.check(ctx), errClosed) {
				if err := f.stop(ctx, other); err != nil {
					return err
				}
			}
		}
	}
	return f.stop(ctx, s)
}

func (s service) missing(reason error) error {
	hint := fmt.Sprintf("set %s to the address of a server, or start a Docker engine, or as root apt-get install %s",
		s.env, strings.Join(s.packages, " "))
	// One line, because it is printed beside the name of each test that is skipped for it.
	return &MissingError{Service: s.name, Hint: hint, Reason: oneLine(reason)}
}

type oneLineError struct{ error }

func oneLine(err error) error { return oneLineError{err} }

func (e oneLineError) Error() string {
	return strings.Join(strings.FieldsFunc(e.error.Error(), func(r rune) bool { return r == '\n' || r == '\r' }), "; ")
}

func (e oneLineError) Unwrap() error { return e.error }

// stopped waits until a server that was told to stop has closed its port. The reply to that
// order is often a cut connection, so its error counts only if the port stays open.
func stopped(ctx context.Context, port int, order error) error {
	for deadline := time.Now().Add(startup); time.Now().Before(deadline); {
		if !isOpen(ctx, port) {
			return ctx.Err()
		}
		time.Sleep(50 * time.Millisecond)
	}
	return errors.Join(fmt.Errorf("port %d is still open", port), order)
}

func isOpen(ctx context.Context, port int) bool {
	conn, err := (&net.Dialer{Timeout: 2 * time.Second}).DialContext(ctx, "tcp", loopback(port))
	if err != nil {
		return false
	}
	_ = conn.Close()
	return true
}

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
