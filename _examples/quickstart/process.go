package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"

	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
)

const (
	processEnv = "QUICKSTART_PROCESS" // the number of a child
	dirEnv     = "QUICKSTART_DIR"     // its folder
	pointEnv   = "INBOX_CRASH_POINT"  // read by inboxtest.Point
)

// childArgs tells whether this process is a child, and which.
func childArgs() (process int, dir string, ok bool) {
	process, err := strconv.Atoi(os.Getenv(processEnv))
	return process, os.Getenv(dirEnv), err == nil
}

// work is a child's part: the service, and the broker that delivers to it. Process 1 does not survive it.
func work(ctx context.Context, process int, dir string) error {
	go func() { // no orphans: the parent holds the other end of stdin
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(1)
	}()
	db, err := openDatabase(ctx, dir)
	if err != nil {
		return err
	}
	defer db.Close() //nolint:errcheck // everything is committed
	j, err := openJournal(dir, process)
	if err != nil {
		return err
	}
	broker := gochannel.NewGoChannel(gochannel.Config{}, errorLogger{})
	router, err := newRouter(ctx, db, broker, j.observe)
	if err != nil {
		return err
	}
	router.AddSubscriberDecorators(j.decorate)
	stopped := make(chan error, 1)
	go func() { stopped <- router.Run(ctx) }()
	select {
	case <-router.Running():
	case err := <-stopped:
		return err
	}

	parts := []func(id, n int) bool{everything}
	if process == 1 {
		parts = []func(id, n int) bool{beforeKill, atKill}
	}
	for _, part := range parts {
		due, err := readDue(dir, part)
		if err != nil {
			return err
		}
		if err := broker.Publish(topic, due...); err != nil { // all of them at once
			return err
		}
		if err := j.waitForAcks(ctx, len(due)); err != nil {
			return err
		}
	}
	return errors.Join(router.Close(), <-stopped)
}

// child is this program once more, as a process that may be killed.
type child struct {
	cmd   *exec.Cmd
	lines *bufio.Scanner
}

func startChild(ctx context.Context, process int, dir, point string) (*child, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self)
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d", processEnv, process), dirEnv+"="+dir, pointEnv+"="+point)
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

// waitForPoint returns when the child stands at its point.
func (c *child) waitForPoint() error {
	for c.lines.Scan() {
		if c.lines.Text() == "crash-point "+handlerPoint(killedAt) {
			return nil
		}
	}
	return fmt.Errorf("process 1 ended before it could be killed: %w", errors.Join(c.lines.Err(), c.cmd.Wait()))
}

// kill ends the child with SIGKILL, which it can neither see nor delay, and waits until it is gone.
func (c *child) kill() error {
	if err := c.cmd.Process.Kill(); err != nil {
		return err
	}
	if err := c.cmd.Wait(); err == nil {
		return errors.New("process 1 ended by itself instead of being killed")
	}
	return nil
}

// wait returns when the child has ended by itself.
func (c *child) wait() error {
	for c.lines.Scan() { // it has nothing to say
	}
	return errors.Join(c.lines.Err(), c.cmd.Wait())
}
