package inboxtest_test

import (
	"runtime"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// exchange measures exchanges of one line. Of many it takes the tenth part's slowest: other
// work on the machine makes some slower, nothing makes them faster.
func exchange(t *testing.T, c client) time.Duration {
	times := make([]time.Duration, 300)
	for i := range times {
		begin := time.Now()
		c.send(t, "ping")
		c.receive(t, "ping")
		times[i] = time.Since(begin)
	}
	slices.Sort(times)
	return times[len(times)/10]
}

func TestProxyLatency(t *testing.T) {
	server := newEchoServer(t)
	p := startProxy(t, server.Addr().String())
	c := dial(t, p.Addr())

	direct := exchange(t, dial(t, server.Addr().String()))
	base := exchange(t, c)
	t.Logf("without latency: directly %s, through the proxy %s", direct, base)
	tolerance := 300 * time.Microsecond
	if runtime.GOOS != "linux" {
		tolerance = 2 * time.Millisecond
	}
	for _, d := range []time.Duration{200 * time.Microsecond, 500 * time.Microsecond, 2 * time.Millisecond} {
		p.SetLatency(d)
		added := exchange(t, c) - base
		t.Logf("%s: added %s", d, added)
		require.Greater(t, added, d-50*time.Microsecond)
		require.Less(t, added, d+tolerance)
	}

	p.SetLatency(0)
	require.Less(t, exchange(t, c)-base, 200*time.Microsecond)
}

// TestProxyLatencyIsPaidOnce sends 50 lines without waiting, over one connection and over 50:
// one after the other they would take 5 s.
func TestProxyLatencyIsPaidOnce(t *testing.T) {
	const d = 100 * time.Millisecond
	server := newEchoServer(t)
	p := startProxy(t, server.Addr().String())
	p.SetLatency(d)

	begin := time.Now()
	c := dial(t, p.Addr())
	for i := range 50 {
		c.send(t, strconv.Itoa(i))
		time.Sleep(time.Millisecond) // a packet each
	}
	for i := range 50 {
		c.receive(t, strconv.Itoa(i))
	}
	require.GreaterOrEqual(t, time.Since(begin), d+50*time.Millisecond)
	require.Less(t, time.Since(begin), 10*d)

	begin = time.Now()
	clients := make([]client, 50)
	for i := range clients {
		clients[i] = dial(t, p.Addr())
		clients[i].send(t, strconv.Itoa(i))
	}
	for i, c := range clients {
		c.receive(t, strconv.Itoa(i))
	}
	require.GreaterOrEqual(t, time.Since(begin), d)
	require.Less(t, time.Since(begin), 10*d)
}
