package inboxtest

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const mysqlHello = "\x0a10.11.0\x00"

// mysqlBytes is a packet of MySQL's.
func mysqlBytes(sequence byte, payload string) string {
	n := len(payload)
	return string([]byte{byte(n), byte(n >> 8), byte(n >> 16), sequence}) + payload
}

// mysqlWire is a connection to MySQL behind its greeting; the client asks for the capabilities.
func mysqlWire(t *testing.T, capabilities string) *wire {
	t.Helper()
	w := newWire()
	greeting := mysqlBytes(0, mysqlHello)
	var forwarded string
	for _, part := range []string{greeting[:6], greeting[6:]} { // in two segments
		f, cut := w.server(part)
		require.False(t, cut)
		forwarded += f
	}
	require.Equal(t, greeting, forwarded)
	answer := mysqlBytes(1, capabilities+strings.Repeat("\x00", 28)+"root\x00")
	require.Equal(t, answer, w.client(answer))
	return w
}

func TestMySQL_Commit(t *testing.T) {
	t.Parallel()
	w := mysqlWire(t, "\x05\x02\x00\x00")
	w.commits.drops = 1
	more := mysqlBytes(2, "\x01\x04") // the authentication goes on
	ok := mysqlBytes(3, "\x00\x00\x00\x02\x00")
	forwarded, cut := w.server(more + ok)
	require.Equal(t, more+ok, forwarded)
	require.False(t, cut)

	commit := mysqlBytes(0, "\x03COMMIT")
	refused := mysqlBytes(1, "\xff\x10\x04no")
	require.Equal(t, commit, w.client(commit))
	forwarded, cut = w.server(refused)
	require.Equal(t, refused, forwarded, "an error is no COMMIT")
	require.False(t, cut)
	require.Equal(t, commit, w.client(commit))
	forwarded, cut = w.server(mysqlBytes(1, "\x00\x00\x00"))
	require.Empty(t, forwarded)
	require.True(t, cut)
	require.Equal(t, Counts{DroppedCommits: 1}, w.stats.counts)
	require.Equal(t, []string{"COMMIT", "COMMIT"}, w.stats.log)
}

// TestMySQL_Unreadable connections pass through.
func TestMySQL_Unreadable(t *testing.T) {
	t.Parallel()
	for name, capabilities := range map[string]string{
		"encrypted": "\x00\x0a\x00\x00", "compressed": "\x20\x02\x00\x00", "zstd": "\x00\x02\x00\x04",
	} {
		w := mysqlWire(t, capabilities)
		require.Equal(t, "\x16\x03\x01", w.client("\x16\x03\x01"), name)
		forwarded, cut := w.server("\x16")
		require.Equal(t, "\x16", forwarded, name)
		require.False(t, cut, name)
	}
}
