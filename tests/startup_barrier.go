package tests

import (
	"bufio"
	"context"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/watermill-contrib/watermill-inbox/inboxtest"
)

// barrier lets a number of processes start something at the same moment: each tells its parent that it is there, and
// the parent answers all of them when the last one is.
type barrier struct {
	listener net.Listener
	children []*inboxtest.Child
	lines    []*barrierLine
	number   int
}

// barrierTimeout is how long one process may keep the others.
const barrierTimeout = time.Minute

// newBarrier is the parent's side.
func newBarrier(t testing.TB, number int) *barrier {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	return &barrier{listener: listener, number: number}
}

func (b *barrier) addr() string { return b.listener.Addr().String() }

// accept waits until all processes have connected.
func (b *barrier) accept(t testing.TB) {
	t.Helper()
	require.NoError(t, b.listener.(*net.TCPListener).SetDeadline(time.Now().Add(barrierTimeout)))
	for range b.number {
		conn, err := b.listener.Accept()
		b.require(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		b.lines = append(b.lines, newBarrierLine(conn))
	}
}

// pass waits until all processes are at the barrier and lets them go on.
func (b *barrier) pass(t testing.TB) {
	t.Helper()
	for _, line := range b.lines {
		b.require(t, line.hear())
	}
	for _, line := range b.lines {
		b.require(t, line.say())
	}
}

// require fails the test with what the children printed: one of them ended, most likely.
func (b *barrier) require(t testing.TB, err error) {
	t.Helper()
	if err == nil {
		return
	}
	for _, child := range b.children {
		_ = child.Kill()
		t.Log(child.Output())
	}
	require.NoError(t, err, "a process did not come to the barrier")
}

// dialBarrier is a child's side.
func dialBarrier(t testing.TB, addr string) *barrierLine {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(context.Background(), "tcp", addr)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return newBarrierLine(conn)
}

// wait stops a child until all the others are here too.
func (l *barrierLine) wait(t testing.TB) {
	t.Helper()
	require.NoError(t, l.say())
	require.NoError(t, l.hear())
}

// barrierLine is the connection between a parent and a child; a line of text is a word.
type barrierLine struct {
	conn   net.Conn
	reader *bufio.Reader
}

func newBarrierLine(conn net.Conn) *barrierLine { return &barrierLine{conn, bufio.NewReader(conn)} }

func (l *barrierLine) say() error {
	_, err := l.conn.Write([]byte("\n"))
	return err
}

func (l *barrierLine) hear() error {
	if err := l.conn.SetReadDeadline(time.Now().Add(barrierTimeout)); err != nil {
		return err
	}
	_, err := l.reader.ReadString('\n')
	return err
}
