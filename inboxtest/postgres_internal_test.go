package inboxtest

import (
	"encoding/binary"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// typed builds a typed message; packet one without a type.
func typed(kind byte, body string) string {
	return string(kind) + string(binary.BigEndian.AppendUint32(nil, uint32(len(body)+4))) + body
}

func packet(code uint32, body string) string {
	size := binary.BigEndian.AppendUint32(nil, uint32(len(body)+8))
	return string(binary.BigEndian.AppendUint32(size, code)) + body
}

const version30 = 3 << 16

// wire drives a session without a network.
type wire struct {
	*session
	stats   stats
	commits commitFaults
}

func newWire() *wire {
	w := &wire{}
	w.session = newSession(&w.stats, &w.commits)
	return w
}

// client and server return what is forwarded of what the two sides send.
func (w *wire) client(data string) string {
	parts, _ := w.fromClient([]byte(data))
	var all []byte
	for _, part := range parts {
		all = append(all, part...)
	}
	return string(all)
}

func (w *wire) server(data string) (forwarded string, cut bool) {
	bytes, cut := w.fromServer([]byte(data))
	return string(bytes), cut
}

func ready(t *testing.T) *wire {
	w := newWire()
	startup := packet(version30, "user\x00me\x00\x00")
	require.Equal(t, startup, w.client(startup))
	greeting := typed('R', "\x00\x00\x00\x00") + typed('K', "12345678") + typed('Z', "I")
	forwarded, _ := w.server(greeting)
	require.Equal(t, greeting, forwarded)
	require.Zero(t, w.stats.counts)
	return w
}

const insert = "INSERT"

func extended(sql string) string {
	return typed('P', "\x00"+sql+"\x00\x00\x00") + typed('B', "\x00\x00\x00\x00\x00\x00\x00\x00") +
		typed('D', "P\x00") + typed('E', "\x00\x00\x00\x00\x00")
}

var extendedReply = typed('1', "") + typed('2', "") + typed('n', "")

func TestSegmentsOfOneFlight(t *testing.T) {
	t.Parallel()
	w := ready(t)
	flight := extended(insert) + typed('S', "")
	forwarded := ""
	for _, b := range []byte(flight) {
		forwarded += w.client(string(b))
	}
	require.Equal(t, flight, forwarded)

	reply := extendedReply + typed('C', "INSERT 0 1\x00") + typed('Z', "I")
	forwarded = ""
	for _, b := range []byte(reply) {
		part, _ := w.server(string(b))
		forwarded += part
	}
	require.Equal(t, reply, forwarded)
	require.Equal(t, Counts{RoundTrips: 1, Statements: 1}, w.stats.counts)
	require.Equal(t, []string{insert}, w.stats.log)
}

// TestErrorBeforeSync has the server's error come back while the client's Sync is under way: it
// is still the same flight. After a Flush the client has waited, and Sync is a flight.
func TestErrorBeforeSync(t *testing.T) {
	t.Parallel()
	w := ready(t)
	w.client(extended(insert))
	w.server(typed('E', "\x00"))
	w.client(extended(insert)) // ignored by the server
	w.client(typed('S', ""))
	w.server(typed('Z', "I"))
	require.Equal(t, Counts{RoundTrips: 1, Statements: 1}, w.stats.counts)

	w.client(extended(insert) + typed('H', ""))
	w.server(typed('E', "\x00"))
	w.client(typed('S', ""))
	w.server(typed('Z', "I"))
	require.Equal(t, Counts{RoundTrips: 3, Statements: 2}, w.stats.counts)
}

func TestAsynchronousMessages(t *testing.T) {
	t.Parallel()
	w := ready(t)
	w.server(typed('A', "note") + typed('N', "notice") + typed('S', "name\x00value\x00"))
	w.server(typed('E', "FATAL: terminating connection due to idle-in-transaction timeout\x00"))
	w.server(typed('Z', "I")) // never sent so, and must do no harm
	require.Zero(t, w.stats.counts)
	w.client(typed('X', ""))
	require.Zero(t, w.stats.counts)
}

func TestCommitReplyIsDroppedAfterReady(t *testing.T) {
	t.Parallel()
	w := ready(t)
	w.commits.drops = 1
	w.client(typed('Q', "COMMIT\x00"))
	forwarded, cut := w.server(typed('C', "COMMIT\x00"))
	require.Empty(t, forwarded)
	require.False(t, cut, "the server has not finished")
	forwarded, cut = w.server(typed('Z', "I"))
	require.Empty(t, forwarded)
	require.True(t, cut)
	require.Equal(t, Counts{RoundTrips: 1, Statements: 1, DroppedCommits: 1}, w.stats.counts)

	// With a Flush in place of Sync there is no ReadyForQuery to wait for. What comes before
	// the COMMIT's own reply is delivered.
	w = ready(t)
	w.commits.drops = 1
	w.client(extended("commit") + typed('H', ""))
	forwarded, cut = w.server(extendedReply + typed('C', "COMMIT\x00"))
	require.Equal(t, extendedReply, forwarded)
	require.True(t, cut)
}

func TestPartsOfClient(t *testing.T) {
	t.Parallel()
	w := ready(t)
	flight := extended(insert) + extended("COMMIT") + typed('S', "")
	parts, _ := w.fromClient([]byte(flight))
	require.Len(t, parts, 1)
	w.server(strings.Repeat(extendedReply+typed('C', "COMMIT\x00"), 2) + typed('Z', "I"))

	w.commits.hook = func() {}
	parts, _ = w.fromClient([]byte(flight))
	require.Len(t, parts, 2)
	require.Equal(t, flight, string(parts[0])+string(parts[1]))
	require.Equal(t, typed('E', "\x00\x00\x00\x00\x00")+typed('S', ""), string(parts[1]))
	w.server(strings.Repeat(extendedReply+typed('C', "COMMIT\x00"), 2) + typed('Z', "I"))

	parts, _ = w.fromClient([]byte(typed('Q', "COMMIT\x00")))
	require.Len(t, parts, 2)
	require.Empty(t, parts[0])
}

func TestEncryptionIsDenied(t *testing.T) {
	t.Parallel()
	w := newWire()
	for _, code := range []uint32{codeGSS, codeSSL} {
		parts, answer := w.fromClient([]byte(packet(code, "")))
		require.Equal(t, "N", string(answer))
		require.Equal(t, [][]byte{{}}, parts)
	}
	require.Equal(t, packet(version30, "user\x00me\x00\x00"), w.client(packet(version30, "user\x00me\x00\x00")))
	require.Equal(t, phaseAuth, w.phase)
}

// TestOtherProtocols pass through from the first byte, whoever speaks first.
func TestOtherProtocols(t *testing.T) {
	t.Parallel()
	for name, first := range map[string]string{
		"Redis":              "PING\r\n",
		"TLS":                "\x16\x03\x01",
		"cancel request":     packet(80877102, "12345678"),
		"Kafka ApiVersions":  packet(18<<16|3, "\x00\x00\x00\x01\x00\x06client"),
		"Kafka Metadata":     packet(3<<16, "\x00\x00\x00\x01\x00\x06client"),
		"too long a start":   packet(version30, strings.Repeat("user\x00", 2000)),
		"a start of nothing": "\x00\x00\x00\x01\x00\x00\x00\x00",
	} {
		w := newWire()
		require.Equal(t, first, w.client(first), name)
		require.Equal(t, phaseUnparsed, w.phase, name)
		forwarded, _ := w.server("+")
		require.Equal(t, "+", forwarded, name)
	}

	w := newWire() // SMTP
	forwarded, _ := w.server("220 mail\r\n")
	require.Equal(t, "220 mail\r\n", forwarded)
	require.Equal(t, "\x00", w.client("\x00"))
	require.Zero(t, w.stats.counts)
}

// TestNonsense on a connection that began well is passed on for the other side to refuse.
func TestNonsense(t *testing.T) {
	t.Parallel()
	w := ready(t)
	require.Equal(t, "Q\xff\xff\xff\xff", w.client("Q\xff\xff\xff\xff"))
	forwarded, _ := w.server("E\x00\x00\x00\x00")
	require.Equal(t, "E\x00\x00\x00\x00", forwarded)
}

// FuzzSession feeds both directions anything: nothing panics, and nothing is invented.
func FuzzSession(f *testing.F) {
	f.Add([]byte(extended(insert)+typed('S', "")), []byte(typed('E', "\x00")+typed('Z', "I")))
	f.Add([]byte("Z\x00\x00\x00\x04"), []byte("G\x00\x00\x00\x04W\x00\x00\x00\x04"))
	f.Fuzz(func(t *testing.T, client, server []byte) {
		w := ready(t)
		w.commits.hook = func() {}
		for i := 0; i < max(len(client), len(server)); i += 7 {
			if i < len(client) {
				w.client(string(client[i:min(i+7, len(client))]))
			}
			if i < len(server) {
				w.server(string(server[i:min(i+7, len(server))]))
			}
		}
	})
}
