package inboxtest_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/watermill-contrib/watermill-inbox/inboxtest"
)

// TestInChild is what the children of the other tests run.
func TestInChild(t *testing.T) {
	if !inboxtest.IsChild() {
		return // it is for children
	}
	for i := range 4 {
		fmt.Printf("before %d, half a line", i)
		inboxtest.Point("other")
		inboxtest.Point("here")
		fmt.Printf("after %d\n", i)
	}
	switch os.Getenv("THEN") {
	case "fail":
		t.Fatal("as told")
	case "hang":
		select {}
	}
	t.Run("sub test", func(*testing.T) { fmt.Println("sub test runs") })
}

func start(t *testing.T, test string, config inboxtest.ChildConfig) *inboxtest.Child {
	c, err := inboxtest.StartChild(t.Context(), test, config)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Kill() })
	return c
}

func within(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func TestChildIsKilledAtPoint(t *testing.T) {
	t.Parallel()
	c := start(t, "TestInChild", inboxtest.ChildConfig{Point: "here"})
	require.NoError(t, c.WaitPoint(within(t, time.Minute)))
	require.Error(t, c.Wait(within(t, 50*time.Millisecond)), "it stands still")
	require.NoError(t, c.Kill())
	require.NoError(t, c.Kill())
	require.ErrorContains(t, c.Wait(t.Context()), "signal: killed")
	require.Contains(t, c.Output(), "before 0")
	require.NotContains(t, c.Output(), "after 0")
	require.NoError(t, c.WaitPoint(t.Context()), "the point stays reached")
}

func TestChildIsKilledAtThirdPass(t *testing.T) {
	t.Parallel()
	c := start(t, "TestInChild", inboxtest.ChildConfig{Point: "here#3"})
	require.NoError(t, c.WaitPoint(within(t, time.Minute)))
	require.NoError(t, c.Kill())
	require.Contains(t, c.Output(), "after 1")
	require.NotContains(t, c.Output(), "after 2")
}

func TestChildEndsByItself(t *testing.T) {
	t.Parallel()
	c := start(t, "TestInChild", inboxtest.ChildConfig{})
	require.NoError(t, c.Wait(within(t, time.Minute)))
	require.Contains(t, c.Output(), "sub test runs")
	require.Contains(t, c.Output(), "--- PASS: TestInChild")

	c = start(t, "TestInChild/sub test", inboxtest.ChildConfig{Env: []string{"THEN=fail"}})
	err := c.Wait(within(t, time.Minute))
	require.ErrorContains(t, err, "exit status 1")
	require.ErrorContains(t, err, "as told", "the output is in the error")
}

func TestChildMissesPoint(t *testing.T) {
	t.Parallel()
	c := start(t, "TestInChild", inboxtest.ChildConfig{Point: "here#5"})
	err := c.WaitPoint(within(t, time.Minute))
	require.ErrorContains(t, err, `before "crash-point here"`)
	require.ErrorContains(t, err, "after 3", "the output is in the error")
	var exit *exec.ExitError
	require.NotErrorAs(t, c.Wait(t.Context()), &exit)

	c = start(t, "TestInChild", inboxtest.ChildConfig{Point: "nowhere", Env: []string{"THEN=hang"}})
	err = c.WaitPoint(within(t, 500*time.Millisecond))
	require.ErrorIs(t, err, context.DeadlineExceeded)

	c = start(t, "TestNoSuchTest", inboxtest.ChildConfig{Point: "here"})
	require.ErrorContains(t, c.WaitPoint(within(t, time.Minute)), "no tests to run")
}

func TestChildEndsWithoutParent(t *testing.T) {
	t.Parallel()
	c := start(t, "TestInChild", inboxtest.ChildConfig{Point: "here", Timeout: time.Second})
	require.ErrorContains(t, c.Wait(within(t, time.Minute)), "test timed out after 1s")

	ctx, cancel := context.WithCancel(t.Context())
	c, err := inboxtest.StartChild(ctx, "TestInChild", inboxtest.ChildConfig{Point: "here"})
	require.NoError(t, err)
	cancel()
	require.ErrorContains(t, c.Wait(within(t, time.Minute)), "signal: killed")

	_, err = inboxtest.StartChild(t.Context(), "TestInChild", inboxtest.ChildConfig{Timeout: -1})
	require.ErrorContains(t, err, "Timeout is -1ns")
}

func TestPointOutsideOfChildren(t *testing.T) {
	t.Parallel()
	inboxtest.Point("here")
	inboxtest.Point("")
	require.False(t, inboxtest.IsChild())
}
