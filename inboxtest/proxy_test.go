package inboxtest_test

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/watermill-contrib/watermill-inbox/inboxtest"
)

func TestProxyForwards(t *testing.T) {
	t.Parallel()
	server := newEchoServer(t)
	p := startProxy(t, server.Addr().String())
	c := dial(t, p.Addr())

	c.send(t, "hello")
	c.receive(t, "hello")

	// The client's end passes through, and what the server still has to say comes back.
	c.send(t, "bye")
	require.NoError(t, c.CloseWrite())
	c.receive(t, "bye")
	_, err := c.r.ReadByte()
	require.ErrorIs(t, err, io.EOF)
	require.NoError(t, <-server.ends)
	require.Zero(t, p.Counts())
}

func TestProxyForwardsMuch(t *testing.T) {
	t.Parallel()
	server := newEchoServer(t)
	p := startProxy(t, server.Addr().String())
	p.SetLatency(time.Millisecond)
	c := dial(t, p.Addr())

	sent := make([]byte, 40<<20) // more than the queues hold
	_, _ = rand.NewChaCha8([32]byte{}).Read(sent)
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		_, _ = c.Write(sent)
		_ = c.CloseWrite()
	})
	got, err := io.ReadAll(c.r)
	require.NoError(t, err)
	require.True(t, bytes.Equal(sent, got))
}

func TestProxyCutAll(t *testing.T) {
	t.Parallel()
	server := newEchoServer(t)
	p := startProxy(t, server.Addr().String())
	c := dial(t, p.Addr())
	c.send(t, "hello")
	c.receive(t, "hello")

	p.CutAll()
	_, err := c.r.ReadByte()
	require.ErrorIs(t, err, syscall.ECONNRESET)
	require.ErrorIs(t, <-server.ends, syscall.ECONNRESET)

	c = dial(t, p.Addr())
	c.send(t, "again")
	c.receive(t, "again")
}

func TestProxyPassesResetOn(t *testing.T) {
	t.Parallel()
	server := newEchoServer(t)
	p := startProxy(t, server.Addr().String())
	c := dial(t, p.Addr())
	c.send(t, "hello")
	c.receive(t, "hello")

	require.NoError(t, c.SetLinger(0))
	require.NoError(t, c.Close())
	require.ErrorIs(t, <-server.ends, syscall.ECONNRESET)
}

func TestProxyStopForwarding(t *testing.T) {
	t.Parallel()
	server := newEchoServer(t)
	p := startProxy(t, server.Addr().String())
	c, dying := dial(t, p.Addr()), dial(t, p.Addr())
	for _, c := range []client{c, dying} {
		c.send(t, "before")
		c.receive(t, "before")
	}

	p.StopForwarding()
	p.StopForwarding()
	c.send(t, "during")
	c.silent(t)
	late := dial(t, p.Addr())
	late.send(t, "late")
	late.silent(t)
	require.NoError(t, dying.SetLinger(0))
	require.NoError(t, dying.Close())
	select {
	case err := <-server.ends:
		t.Fatalf("the server has seen the end of a connection: %v", err)
	case <-time.After(50 * time.Millisecond):
	}

	p.Resume()
	p.Resume()
	c.receive(t, "during")
	late.receive(t, "late")
	require.ErrorIs(t, <-server.ends, syscall.ECONNRESET)
}

func TestProxyCloseWhileStopped(t *testing.T) {
	t.Parallel()
	server := newEchoServer(t)
	p := startProxy(t, server.Addr().String())
	c := dial(t, p.Addr())
	c.send(t, "before")
	c.receive(t, "before")

	p.StopForwarding()
	late := dial(t, p.Addr())
	require.NoError(t, p.Close())
	require.NoError(t, p.Close())
	require.ErrorIs(t, <-server.ends, syscall.ECONNRESET)
	for _, c := range []client{c, late} {
		_, err := c.r.ReadByte()
		require.ErrorIs(t, err, syscall.ECONNRESET)
	}
	_, err := net.Dial("tcp", p.Addr())
	require.Error(t, err)
}

func TestProxyRefuse(t *testing.T) {
	t.Parallel()
	server := newEchoServer(t)
	p := startProxy(t, server.Addr().String())
	old := dial(t, p.Addr())
	old.send(t, "before")
	old.receive(t, "before")

	p.Refuse(true)
	requireReset(t, p.Addr())
	old.send(t, "old")
	old.receive(t, "old")

	p.Refuse(false)
	c := dial(t, p.Addr())
	c.send(t, "new")
	c.receive(t, "new")
}

// requireReset expects a reset, which may come before Dial has returned.
func requireReset(t *testing.T, addr string) {
	conn, err := net.Dial("tcp", addr)
	if err == nil {
		defer conn.Close()
		require.NoError(t, conn.SetDeadline(time.Now().Add(30*time.Second)))
		_, err = conn.Read(make([]byte, 1))
	}
	require.ErrorIs(t, err, syscall.ECONNRESET)
}

func TestProxyUpstreamIsDown(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, listener.Close())
	p := startProxy(t, listener.Addr().String())

	requireReset(t, p.Addr())

	_, err = inboxtest.NewProxy("no port")
	require.ErrorContains(t, err, `"no port"`)
}

// TestProxyFaultsUnderTraffic switches everything at random while clients talk: an answer may
// be missing, but it is never wrong, and nothing hangs or is left behind.
func TestProxyFaultsUnderTraffic(t *testing.T) {
	t.Parallel()
	server := newEchoServer(t)
	p := startProxy(t, server.Addr().String())

	stop := make(chan struct{})
	var clients sync.WaitGroup
	var mu sync.Mutex
	answers, wrong := 0, 0
	for range 8 {
		clients.Go(func() {
			talk := func() {
				conn, err := net.Dial("tcp", p.Addr())
				if err != nil {
					return
				}
				defer conn.Close()
				_ = conn.SetDeadline(time.Now().Add(time.Second))
				for n := byte(0); ; n++ {
					var got [2]byte
					if _, err := conn.Write([]byte{'>', n}); err != nil {
						return
					}
					if _, err := io.ReadFull(conn, got[:]); err != nil {
						return
					}
					mu.Lock()
					answers++
					if got != [2]byte{'>', n} {
						wrong++
					}
					mu.Unlock()
					select {
					case <-stop:
						return
					default:
					}
				}
			}
			for {
				talk()
				select {
				case <-stop:
					return
				default:
				}
			}
		})
	}
	var admins sync.WaitGroup
	for range 2 {
		admins.Go(func() {
			for range 300 {
				switch rand.IntN(6) {
				case 0:
					p.CutAll()
				case 1:
					p.StopForwarding()
				case 2:
					p.Refuse(rand.IntN(2) == 0)
				case 3, 4:
					p.Resume()
				case 5:
					p.SetLatency(time.Duration(rand.IntN(500)) * time.Microsecond)
				}
				time.Sleep(time.Millisecond)
			}
		})
	}
	admins.Wait()
	p.Resume()
	close(stop)
	clients.Wait()
	require.Zero(t, wrong)
	require.Positive(t, answers)

	p.Refuse(false)
	c := dial(t, p.Addr())
	c.send(t, "sound")
	c.receive(t, "sound")
	require.NoError(t, c.Close())
	for range 10_000 {
		select {
		case err := <-server.ends:
			if err == nil || errors.Is(err, syscall.ECONNRESET) {
				continue
			}
			t.Fatal(err)
		default:
			return
		}
	}
}
