package services

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// state is the directory that outlives a run. It holds the data directories and logs of what
// we started, the lock, and notes about what was tried.
type state string

// forget is how long a failed download is not tried again by a test.
const forget = 10 * time.Minute

// openState makes the directory, open to the users that the servers run as. Root's own cache
// is closed to them, and a name in /tmp could be somebody else's: root uses /var/lib.
func openState() (state, error) {
	dir := "/var/lib"
	if os.Geteuid() != 0 {
		var err error
		if dir, err = os.UserCacheDir(); err != nil {
			return "", fmt.Errorf("services: find a directory for the servers' data: %w", err)
		}
	}
	dir = filepath.Join(dir, "watermill-inbox-tests")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("services: make the directory for the servers' data: %w", err)
	}
	return state(dir), nil
}

func (s state) path(parts ...string) string {
	return filepath.Join(append([]string{string(s)}, parts...)...)
}

// lock makes this the only process that starts or stops servers, until unlock is called or
// the process ends.
func (s state) lock(ctx context.Context) (unlock func(), err error) {
	file, err := os.OpenFile(s.path("lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("services: lock: %w", err)
	}
	for {
		err := tryLock(file)
		if err == nil {
			return func() { _ = file.Close() }, nil // closing releases it
		}
		if !errors.Is(err, errLocked) {
			_ = file.Close()
			return nil, fmt.Errorf("services: lock: %w", err)
		}
		select {
		case <-ctx.Done():
			_ = file.Close()
			return nil, fmt.Errorf("services: another process starts servers and does not end: %w", ctx.Err())
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// write leaves a note for later runs. A note that cannot be written costs them time only.
func (s state) write(name, text string) {
	_ = os.WriteFile(s.path(name), []byte(text+"\n"), 0o600)
}

func (s state) read(name string) string {
	text, _ := os.ReadFile(s.path(name))
	return strings.TrimSpace(string(text))
}

// remember runs try, unless it failed in the last minutes and again is false. Otherwise
// every test of a run would wait for a download that cannot work.
func (s state) remember(ctx context.Context, name string, again bool, try func() error) error {
	name += ".failed"
	if info, err := os.Stat(s.path(name)); err == nil && !again && time.Since(info.ModTime()) < forget {
		return fmt.Errorf("failed %s ago: %s", time.Since(info.ModTime()).Round(time.Second), s.read(name))
	}
	err := try()
	if err != nil {
		if ctx.Err() == nil { // otherwise it was given up rather than failed
			s.write(name, err.Error())
		}
		return err
	}
	_ = os.Remove(s.path(name))
	return nil
}
