package inboxtest

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

// link is one client's connection and the one to the server that belongs to it.
//
// Each direction has a reader, a queue and a writer. The reader only stamps what it reads with
// the time of its delivery, so it never holds up the sender; the writer waits for that time
// and for the gate of StopForwarding, parses, and writes. Because the traffic is parsed at its
// delivery, what a client has seen is already counted, and a dropped reply is cut at the very
// time it would have arrived.
type link struct {
	proxy    *Proxy
	client   *net.TCPConn
	up, down *queue
	clock    alarm // of the writer down; nothing is delayed on its way up
	session  *session

	mu     sync.Mutex
	server *net.TCPConn
	done   chan struct{} // closed by cut
}

func newLink(p *Proxy, client *net.TCPConn) *link {
	return &link{
		proxy:   p,
		client:  client,
		up:      newQueue(),
		down:    newQueue(),
		session: newSession(&p.stats, &p.commits),
		done:    make(chan struct{}),
	}
}

func (l *link) run() {
	defer l.cut()
	if !l.waitForwarding() {
		return
	}
	server, err := l.dial()
	if err != nil {
		return
	}
	var wg sync.WaitGroup
	wg.Go(func() { l.read(l.client, l.up, false) })
	wg.Go(func() { l.read(server, l.down, true) })
	wg.Go(func() { l.write(server, l.up, l.forwardUp) })
	wg.Go(func() { l.write(l.client, l.down, l.forwardDown) })
	wg.Wait()
	// Both ends have said all they had to say: a plain end, not a reset.
	_ = l.client.Close()
	_ = server.Close()
}

func (l *link) dial() (*net.TCPConn, error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		select {
		case <-l.done:
			cancel()
		case <-ctx.Done():
		}
	}()
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", l.proxy.upstream)
	if err != nil {
		return nil, err
	}
	server := conn.(*net.TCPConn)

	l.mu.Lock()
	defer l.mu.Unlock()
	if l.isCut() {
		reset(server)
		return nil, net.ErrClosed
	}
	l.server = server
	return server, nil
}

// cut ends both connections at once. It does not wait for the goroutines of the link.
func (l *link) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.isCut() {
		return
	}
	close(l.done)
	l.up.close()
	l.down.close()
	l.clock.close()
	reset(l.client)
	if l.server != nil {
		reset(l.server)
	}
}

func (l *link) isCut() bool {
	select {
	case <-l.done:
		return true
	default:
		return false
	}
}

// reset closes a connection with RST in place of FIN. Errors mean that it is closed already.
func reset(conn *net.TCPConn) {
	_ = conn.SetLinger(0)
	_ = conn.Close()
}

func (l *link) read(src *net.TCPConn, q *queue, delayed bool) {
	buf := make([]byte, 64<<10)
	for {
		n, err := src.Read(buf)
		var due time.Time
		if d := l.proxy.latency.Load(); delayed && d > 0 {
			due = time.Now().Add(time.Duration(d))
		}
		if n > 0 && !q.push(chunk{data: append([]byte(nil), buf[:n]...), due: due}) {
			return
		}
		if err != nil {
			q.push(chunk{end: err, due: due})
			return
		}
	}
}

// write delivers what is in the queue to dst, and at last the end of the sender's side.
//
// When dst can no longer be written to, the rest is thrown away but the other direction lives
// on: what a client sent before it died still reaches the server, as it would without a proxy.
// The end of dst is its own reader's business.
func (l *link) write(dst *net.TCPConn, q *queue, forward func(chunk) error) {
	broken := false
	for {
		c, ok := q.pop()
		if !ok || !l.clock.waitUntil(c.due) || !l.waitForwarding() {
			return
		}
		switch {
		case errors.Is(c.end, io.EOF):
			_ = dst.CloseWrite()
			return
		case c.end != nil:
			reset(dst)
			return
		case !broken:
			broken = forward(c) != nil
		}
	}
}

// waitForwarding waits while the network is stopped and returns false when the link is cut.
func (l *link) waitForwarding() bool {
	select {
	case <-l.proxy.forwarding():
		return !l.isCut()
	case <-l.done:
		return false
	}
}

// forwardUp sends a client's bytes to the server; before each COMMIT in them it calls the
// OnCommit function, with everything in front of the COMMIT already sent.
func (l *link) forwardUp(c chunk) error {
	parts, answer := l.session.fromClient(c.data)
	if len(answer) > 0 {
		l.down.push(chunk{data: answer, made: true})
	}
	for i, part := range parts {
		if i > 0 {
			l.proxy.commits.run()
		}
		if len(part) == 0 {
			continue
		}
		// The function may have stopped the network.
		if !l.waitForwarding() {
			return net.ErrClosed
		}
		if _, err := l.server.Write(part); err != nil {
			return err
		}
	}
	return nil
}

func (l *link) forwardDown(c chunk) error {
	data, cut := c.data, false
	if !c.made {
		data, cut = l.session.fromServer(c.data)
	}
	var err error
	if len(data) > 0 {
		_, err = l.client.Write(data)
	}
	if cut {
		l.cut()
	}
	return err
}
