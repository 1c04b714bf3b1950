package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
)

const (
	roleEnv     = "TWO_PHASE_ROLE"
	dirEnv      = "TWO_PHASE_DIR"
	providerEnv = "TWO_PHASE_PROVIDER" // its address
	upToEnv     = "TWO_PHASE_UP_TO"    // the last order that the broker delivers
	pointEnv    = "INBOX_CRASH_POINT"  // read by inboxtest.Point

	roleProvider = "provider"
	roleWorker   = "worker"

	addressLine = "provider at "
)

// child is this program once more, as a process that may be killed.
type child struct {
	cmd   *exec.Cmd
	lines *bufio.Scanner
}

func startChild(ctx context.Context, dir, role, provider string, s shift) (*child, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	point := ""
	if s.place != "" {
		point = crashPoint(s.place, s.killedAt)
	}
	cmd := exec.CommandContext(ctx, self)
	cmd.Env = append(os.Environ(), roleEnv+"="+role, dirEnv+"="+dir, providerEnv+"="+provider,
		fmt.Sprintf("%s=%d", upToEnv, s.upTo), pointEnv+"="+point)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if _, err := cmd.StdinPipe(); err != nil {
		return nil, err
	}
	return &child{cmd: cmd, lines: bufio.NewScanner(out)}, cmd.Start()
}

// waitFor returns the rest of the first line that begins so.
func (c *child) waitFor(beginning string) (string, error) {
	for c.lines.Scan() {
		if rest, found := strings.CutPrefix(c.lines.Text(), beginning); found {
			return rest, nil
		}
	}
	return "", fmt.Errorf("a process ended before it said %q: %w", beginning, errors.Join(c.lines.Err(), c.cmd.Wait()))
}

// kill ends the child with SIGKILL, which it can neither see nor delay, and waits until it is gone.
func (c *child) kill() error {
	if err := c.cmd.Process.Kill(); err != nil {
		return err
	}
	if err := c.cmd.Wait(); err == nil {
		return errors.New("a process ended by itself instead of being killed")
	}
	return nil
}

// wait returns when the child has ended by itself.
func (c *child) wait() error {
	for c.lines.Scan() { // it has nothing to say
	}
	return errors.Join(c.lines.Err(), c.cmd.Wait())
}

// endWithParent leaves no orphans: the parent holds the other end of stdin.
func endWithParent() {
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(1)
	}()
}
