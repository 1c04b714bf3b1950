package inboxtest

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Proxy is a TCP proxy on a port of its own in front of one server, with faults that may be
// switched at any time while traffic flows.
//
// The faults of the wire (SetLatency, CutAll, StopForwarding, Refuse) work in front of any
// server. The parts that read the traffic (Counts, Log, OnCommit, DropCommitReply) know
// PostgreSQL's protocol, and of MySQL's (and MariaDB's) the statements that are sent as text:
// of these nothing is counted but DroppedCommits. Connections that speak another protocol, or
// MySQL's with encryption or compression, pass through unread and are not counted. So that it can read the traffic the proxy itself answers a request for TLS or
// GSSAPI encryption with "no": a client with sslmode=prefer goes on in clear text, one with
// sslmode=require fails to connect.
//
// Point a client at the proxy by replacing the server's address in its connection string by
// Addr. Changing the Host and Port of a parsed pgx config is not enough: the config's
// Fallbacks keep the server's own address.
type Proxy struct {
	upstream string
	listener *net.TCPListener
	latency  atomic.Int64
	refuse   atomic.Bool
	wg       sync.WaitGroup
	stats    stats
	commits  commitFaults

	mu     sync.Mutex
	links  map[*link]struct{}
	gate   chan struct{} // closed while bytes are forwarded
	closed bool
}

// NewProxy starts a proxy on 127.0.0.1 that forwards to upstream, a "host:port" address.
// The server is dialled anew for each connection, not before; an address that cannot be
// reached shows as a connection that is reset at once.
func NewProxy(upstream string) (*Proxy, error) {
	if _, _, err := net.SplitHostPort(upstream); err != nil {
		return nil, fmt.Errorf("inboxtest: proxy upstream %q: %w", upstream, err)
	}
	listener, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return nil, fmt.Errorf("inboxtest: proxy: %w", err)
	}
	p := &Proxy{
		upstream: upstream,
		listener: listener,
		links:    map[*link]struct{}{},
		gate:     make(chan struct{}),
	}
	close(p.gate)
	p.wg.Go(p.accept)
	return p, nil
}

// Addr is the "host:port" address that clients connect to.
func (p *Proxy) Addr() string {
	return p.listener.Addr().String()
}

// SetLatency makes every exchange that begins from now on take d longer; 0 turns it off.
// d is the added round-trip time: what the server sends is delivered d after it was sent,
// what the client sends goes on at once. Latency costs no bandwidth and bytes in flight do not
// queue behind each other, so a pipeline of many statements pays d once, as on a real network.
// On Linux the delay is true to some 50 µs, elsewhere to about a millisecond.
func (p *Proxy) SetLatency(d time.Duration) {
	p.latency.Store(int64(max(d, 0)))
}

// CutAll resets every connection, on the client's side and on the server's, and loses what is
// in flight. New connections are served as before.
func (p *Proxy) CutAll() {
	for _, l := range p.snapshot() {
		l.cut()
	}
}

// StopForwarding cuts the network without telling anyone: connections stay open, but no byte
// and no end of a connection passes in either direction until Resume, which delivers what was
// held back, as TCP does after an outage. A client that closes its connection, or dies, is
// still connected in the eyes of the server. New connections are accepted and then hear
// nothing. A write that has already begun when StopForwarding is called may still complete.
//
// The kernels on both ends go on to acknowledge what the proxy reads: TCP keepalives and
// tcp_user_timeout do not notice this outage, only timeouts of the protocol above do.
func (p *Proxy) StopForwarding() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.gate:
		if !p.closed {
			p.gate = make(chan struct{})
		}
	default:
	}
}

// Resume ends what StopForwarding began.
func (p *Proxy) Resume() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.gate:
	default:
		close(p.gate)
	}
}

// Refuse makes the proxy reset new connections at once, until Refuse(false). Connections that
// are open already live on.
func (p *Proxy) Refuse(refuse bool) {
	p.refuse.Store(refuse)
}

// Close stops listening, resets all connections and waits until the proxy's goroutines are
// gone, a running OnCommit function included: do not call Close from one. Closing twice does
// nothing.
func (p *Proxy) Close() error {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil
	}
	p.closed = true
	p.mu.Unlock()

	err := p.listener.Close()
	p.CutAll()
	p.wg.Wait()
	return err
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.AcceptTCP()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			// Out of file descriptors, most likely; the listener itself is sound.
			time.Sleep(5 * time.Millisecond)
			continue
		}
		l := newLink(p, client)
		if p.refuse.Load() || !p.add(l) {
			l.cut()
			continue
		}
		p.wg.Go(func() {
			defer p.remove(l)
			l.run()
		})
	}
}

// add registers a connection, unless the proxy is closed: CutAll of Close must not miss one.
func (p *Proxy) add(l *link) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		p.links[l] = struct{}{}
	}
	return !p.closed
}

func (p *Proxy) remove(l *link) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.links, l)
}

func (p *Proxy) snapshot() []*link {
	p.mu.Lock()
	defer p.mu.Unlock()
	links := make([]*link, 0, len(p.links))
	for l := range p.links {
		links = append(links, l)
	}
	return links
}

// forwarding returns a channel that is closed as soon as bytes may pass.
func (p *Proxy) forwarding() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.gate
}
