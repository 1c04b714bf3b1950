package inboxtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"time"
)

// ChildConfig says how StartChild starts a process.
type ChildConfig struct {
	// Point is where the child stops to be killed, as Point knows it: "name" or "name#3".
	// Defaults to none: the child runs to its end.
	Point string

	// Env is added to this process's environment, as "KEY=value".
	Env []string

	// Timeout is how long the child may run; then it ends itself by a panic, even if its parent
	// is long gone. Defaults to one minute.
	Timeout time.Duration
}

func (c *ChildConfig) setDefaults() {
	if c.Timeout == 0 {
		c.Timeout = time.Minute
	}
}

// Validate returns an error that names what is wrong with the configuration.
func (c ChildConfig) Validate() error {
	if c.Timeout < 0 {
		return fmt.Errorf("inboxtest: Timeout is %s, want more than 0", c.Timeout)
	}
	return nil
}

// Child is another process of the running test binary, which executes one of its tests and
// may be killed in the middle of it.
type Child struct {
	cmd    *exec.Cmd
	output childOutput
	ended  chan struct{} // closed when the process is gone
	err    error         // of the process, to be read after ended
}

// StartChild starts the test of that name ("TestX" or "TestX/sub") of the running binary in a
// process of its own, which is killed when ctx ends. The test should check IsChild to know which
// part it plays.
func StartChild(ctx context.Context, test string, config ChildConfig) (*Child, error) {
	config.setDefaults()
	if err := config.Validate(); err != nil {
		return nil, err
	}
	names := strings.Split(test, "/")
	for i, name := range names {
		names[i] = "^" + regexp.QuoteMeta(name) + "$"
	}
	// The binary's own path: os.Args[0] may be relative to a folder that is no longer this one.
	binary, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("inboxtest: child %s: %w", test, err)
	}
	c := &Child{
		cmd: exec.CommandContext(ctx, binary,
			"-test.run="+strings.Join(names, "/"),
			"-test.v",
			"-test.count=1",
			"-test.timeout="+config.Timeout.String(),
		),
		ended: make(chan struct{}),
	}
	name, _, _ := strings.Cut(config.Point, "#")
	c.output.want, c.output.reached = crashPointLine+name, make(chan struct{})
	c.cmd.Stdout = &c.output
	c.cmd.Stderr = &c.output
	c.cmd.Env = append(os.Environ(), childEnv+"=1", crashPointEnv+"="+config.Point)
	c.cmd.Env = append(c.cmd.Env, config.Env...)
	// Processes that the child leaves behind may hold its output open.
	c.cmd.WaitDelay = 5 * time.Second
	if err := c.cmd.Start(); err != nil {
		return nil, fmt.Errorf("inboxtest: child %s: %w", test, err)
	}
	go func() {
		c.err = c.cmd.Wait()
		close(c.ended)
	}()
	return c, nil
}

// WaitPoint waits until the child has stopped at its crash point. It returns an error with the
// child's output when the child ends before that, and when ctx does.
func (c *Child) WaitPoint(ctx context.Context) error {
	select {
	case <-c.output.reached:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("inboxtest: child has not reached %q: %w; its output:\n%s", c.output.want, ctx.Err(), c.Output())
	case <-c.ended:
	}
	select {
	case <-c.output.reached:
		return nil
	default:
		return fmt.Errorf("inboxtest: child ended (%s) before %q; its output:\n%s", c.cmd.ProcessState, c.output.want, c.Output())
	}
}

// Kill ends the child with SIGKILL, which it can neither see nor delay, and waits until it is
// gone. Killing a child that is gone does nothing.
func (c *Child) Kill() error {
	if err := c.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("inboxtest: child: %w", err)
	}
	<-c.ended
	return nil
}

// Wait waits until the child ends by itself. It returns an error with the child's output if
// its test failed, or ctx ended first.
func (c *Child) Wait(ctx context.Context) error {
	select {
	case <-c.ended:
	case <-ctx.Done():
		return fmt.Errorf("inboxtest: child still runs: %w; its output:\n%s", ctx.Err(), c.Output())
	}
	if c.err != nil {
		return fmt.Errorf("inboxtest: child: %w; its output:\n%s", c.err, c.Output())
	}
	return nil
}

// Output is what the child printed so far.
func (c *Child) Output() string {
	c.output.mu.Lock()
	defer c.output.mu.Unlock()
	return string(c.output.text)
}

// childOutput collects what a child prints and watches for the line of its crash point.
type childOutput struct {
	want    string
	reached chan struct{}

	mu    sync.Mutex
	text  []byte
	line  int // where the line that is not complete yet begins in text
	found bool
}

func (o *childOutput) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.text = append(o.text, p...)
	for {
		line, _, ok := strings.Cut(string(o.text[o.line:]), "\n")
		if !ok {
			return len(p), nil
		}
		o.line += len(line) + 1
		if line == o.want && !o.found {
			o.found = true
			close(o.reached)
		}
	}
}
