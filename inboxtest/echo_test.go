package inboxtest_test

import (
	"bufio"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/watermill-contrib/watermill-inbox/inboxtest"
)

// echoServer answers every byte with itself and shows each connection's end.
type echoServer struct {
	net.Listener
	ends chan error // one per connection: nil for a plain end
}

func newEchoServer(t *testing.T) *echoServer {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := &echoServer{Listener: listener, ends: make(chan error, 1000)}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer conn.Close()
				_, err := io.Copy(conn, conn)
				s.ends <- err
			})
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		wg.Wait()
	})
	return s
}

// startProxy closes the proxy before the servers behind it, whose connections it holds.
func startProxy(t *testing.T, upstream string) *inboxtest.Proxy {
	p, err := inboxtest.NewProxy(upstream)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return p
}

type client struct {
	*net.TCPConn
	r *bufio.Reader
}

func dial(t *testing.T, addr string) client {
	conn, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	require.NoError(t, conn.SetDeadline(time.Now().Add(30*time.Second)))
	return client{conn.(*net.TCPConn), bufio.NewReader(conn)}
}

func (c client) send(t *testing.T, line string) {
	_, err := io.WriteString(c, line+"\n")
	require.NoError(t, err)
}

func (c client) receive(t *testing.T, line string) {
	got, err := c.r.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, line+"\n", got)
}

// silent checks that nothing arrives for a while, not even an end.
func (c client) silent(t *testing.T) {
	require.NoError(t, c.SetReadDeadline(time.Now().Add(50*time.Millisecond)))
	_, err := c.r.ReadByte()
	var netErr net.Error
	require.ErrorAs(t, err, &netErr)
	require.True(t, netErr.Timeout(), "%v", err)
	require.NoError(t, c.SetReadDeadline(time.Now().Add(30*time.Second)))
}
