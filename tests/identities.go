package tests

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	inbox "github.com/watermill-contrib/watermill-inbox"
)

// identities are the cases about ids, keys, payloads (D).
func (s *suite) identities() []testCase {
	return []testCase{
		{"D1_EmptyIDIsRefused", s.d1},
		{"D2_OddIDsAreKeptApart", s.d2},
		{"D3_CaseAccentsAndSpacesAreKeptApart", s.d3},
		{"D3_PartsOfAKeyDoNotRunTogether", s.d3parts},
		{"D3_KeySchemesOfLikeConsumersAreKeptApart", s.d3schemes},
		{"D4_LongIDsThatDifferLate", s.d4},
		{"D4_LengthLimit", s.d4limit},
	}
}

// named is one message of a test about names: its key is spelled out in the metadata.
func named(key inbox.Key) *message.Message {
	msg := newMessage("pay 10")
	msg.Metadata.Set("consumer", key.Consumer)
	msg.Metadata.Set("source", key.Source)
	msg.Metadata.Set("id", key.ID)
	return msg
}

// namedConfig reads the keys of named.
func namedConfig() inbox.Config {
	return inbox.Config{
		Consumer: func(msg *message.Message) string { return msg.Metadata.Get("consumer") },
		Identity: func(msg *message.Message) (string, string, error) {
			return msg.Metadata.Get("source"), msg.Metadata.Get("id"), nil
		},
	}
}

// requireApart delivers every key twice: each is handled once, with an effect of its own, and then a duplicate.
func (r *rig) requireApart(t *testing.T, keys []inbox.Key) {
	t.Helper()
	before := r.Rows(t)
	effect := func(i int) string { return strconv.Itoa(before + i) }
	for round, want := range []inbox.Outcome{inbox.OutcomeProcessed, inbox.OutcomeDuplicate} {
		for i, key := range keys {
			told := r.events.count(want)
			require.NoError(t, r.handle(named(key), r.writes(effect(i))), "round %d of %q", round, key)
			require.Equal(t, told+1, r.events.count(want), "round %d of %q: not %s", round, key, want)
		}
	}
	for i, key := range keys {
		require.Equal(t, 1, r.Count(t, effect(i)), "effects of %q", key)
	}
	require.Equal(t, before+len(keys), r.Rows(t), "memory rows")
	require.Equal(t, 0, r.InUse())
}

func (s *suite) d1(t *testing.T) {
	for _, c := range []struct {
		name     string
		identity inbox.Identity
	}{
		{"UUID", inbox.ByUUID()},
		{"Metadata", inbox.ByMetadata("id")},
		{"JoinedMetadata", inbox.ByJoinedMetadata("id", "part")},
		{"CloudEvents", inbox.ByCloudEvents()},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := s.rig(t, Options{}, inbox.Config{Identity: c.identity})
			for i, payload := range []string{"pay 10", "pay 20", "pay 10"} {
				msg := message.NewMessage("", message.Payload(payload))
				msg.Metadata.Set("part", "1")
				err := r.handle(msg, func(msg *message.Message) ([]*message.Message, error) { return nil, notCalled(t)(msg.Context()) })
				require.ErrorIs(t, err, inbox.ErrNoMessageID)
				require.True(t, inbox.IsPermanent(err), "no retry of the message cures it")
				require.False(t, inbox.IsTransient(err))
				require.Equal(t, i+1, r.events.count(inbox.OutcomeRefused))
			}
			require.Equal(t, 0, r.Rows(t), "a message without an id leaves no row")
			require.Equal(t, 0, r.scalar(t, "SELECT count(*) FROM "+r.Consumers))
			require.Equal(t, 0, r.InUse())
		})
	}
}

// oddIDs are ids that a text column, a collation, an encoding or a quote could damage or merge.
func oddIDs() []string {
	ids := []string{
		`a\b/c`, `a\\b/c`, `a/b\c`, `a\/b`, `\`, `\\`, `a\x5cb/c`, // the backslash, and what it is stored as
		"\x00", `\x00`, "\x00\x00", "a\x00b", "a\x00", "ab", "a", // NUL, and what it is stored as
		"🧾", "🧾🧾", "👩‍👩‍👧", "👩👩👧", "日本語", "ﬀ", "ff", // emoji, joined and not; a ligature
		"\u00f6", "o\u0308", "o", // ö in one and in two code points
		strings.Repeat("k", 1024), strings.Repeat("k", 1023) + "K", strings.Repeat("🧾", 256),
		" ", "  ", "\t", "\n", "\r\n", " a", "a ", "a  ", "a\u00a0", "a\u200b",
		`'; --`, `'; DROP TABLE effects; --`, `"`, `""`, `'`, `''`, "`", "$1", "?", "?1", ":id", "%s", "%", "_", "$$", "/*", "NULL", "{inbox}",
		"\xff", "\xff\xfe", "\xc3\x28", "\xed\xa0\x80", "\xf8\xa1\xa1\xa1\xa1", "a\xffb", "a\ufffdb", "\ufffd", // not UTF-8, and its replacement
		`\xff`, `\xFF`, "%ff", "0xff",
	}
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
		if one := string(every[i : i+1]); !slices.Contains(ids, one) {
			ids = append(ids, one)
		}
	}
	return append(ids, string(every))
}

// readable is how a text column of the memory shows bytes, written down a second time: the columns are for people, who
// must find their id.
func readable(s string) string {
	var b strings.Builder
	for _, c := range []byte(s) {
		if c == '\\' || c < ' ' || c > '~' {
			fmt.Fprintf(&b, `\x%02x`, c)
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}

func (s *suite) d2(t *testing.T) {
	r := s.rig(t, Options{}, namedConfig())
	var keys []inbox.Key
	want := map[string]string{} // as stored → the id
	for _, id := range oddIDs() {
		keys = append(keys, inbox.Key{Consumer: consumer, ID: id})
		require.Empty(t, want[readable(id)], "an id is twice in the list")
		want[readable(id)] = id
	}
	r.requireApart(t, keys)

	rows, err := r.DB.QueryContext(context.Background(), "SELECT message_id FROM "+r.Memory)
	require.NoError(t, err)
	defer rows.Close() //nolint:errcheck // rows.Err tells
	for rows.Next() {
		var stored string
		require.NoError(t, rows.Scan(&stored))
		require.Contains(t, want, stored, "a row that shows none of the ids as it should")
		delete(want, stored)
	}
	require.NoError(t, rows.Err())
	require.Empty(t, want, "ids that no row shows")

	// The other parts of a key may hold any bytes too.
	r.requireApart(t, []inbox.Key{
		{Consumer: "\x00\xff'\\", Source: "\xff\x00\"", ID: "1"},
		{Consumer: `\x00\xff'\`, Source: `\xff\x00"`, ID: "1"},
	})
}

// likeNames are names that a collation could take for one.
func likeNames() []string {
	return []string{"k", "K", "k ", " k", "k\t", "k\x00", "ö", "Ö", "o", "o\u0308", "ß", "ss", "SS", "ı", "i", "I", "İ"}
}

func (s *suite) d3(t *testing.T) {
	for _, c := range []struct {
		name string
		key  func(name string) inbox.Key
	}{
		{"ID", func(name string) inbox.Key { return inbox.Key{Consumer: consumer, ID: name} }},
		{"Source", func(name string) inbox.Key { return inbox.Key{Consumer: consumer, Source: name, ID: "1"} }},
		{"Consumer", func(name string) inbox.Key { return inbox.Key{Consumer: name, ID: "1"} }},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := s.rig(t, Options{}, namedConfig())
			var keys []inbox.Key
			for _, name := range likeNames() {
				keys = append(keys, c.key(name))
			}
			r.requireApart(t, keys)
		})
	}
}

func (s *suite) d3parts(t *testing.T) {
	r := s.rig(t, Options{}, namedConfig())
	r.requireApart(t, []inbox.Key{
		{Consumer: "ab", Source: "", ID: "c"},
		{Consumer: "a", Source: "b", ID: "c"},
		{Consumer: "a", Source: "", ID: "bc"},
		{Consumer: "a/b", Source: "", ID: "c"},
		{Consumer: "a", Source: "", ID: "b/c"},
		{Consumer: "a", Source: "b/c", ID: "d"},
		{Consumer: "a/b", Source: "c", ID: "d"},
		{Consumer: "a", Source: "b", ID: "c/d"},
		{Consumer: "a\x00b", Source: "", ID: "c"},
		{Consumer: "a", Source: "\x00b", ID: "c"},
		{Consumer: "a", Source: "", ID: "b\x00c"},
	})
}

// d3schemes fixes different key schemes for consumers whose names a collation could take for one.
func (s *suite) d3schemes(t *testing.T) {
	byID := s.rig(t, Options{}, namedConfig())
	withTime := namedConfig()
	withTime.KeyTime = func(*message.Message) time.Time { return time.UnixMilli(1_700_000_000_000) }
	byTime := newRig(t, byID.Env, withTime)
	for i, name := range likeNames() {
		r := []*rig{byID, byTime}[i%2]
		r.requireApart(t, []inbox.Key{{Consumer: name, ID: "1"}})
	}
}

func (s *suite) d4(t *testing.T) {
	r := s.rig(t, Options{}, namedConfig())
	long := func(equal, length int, end string) inbox.Key {
		id := strings.Repeat("k", equal) + strings.Repeat(end, length-equal)
		return inbox.Key{Consumer: consumer, ID: id}
	}
	r.requireApart(t, []inbox.Key{
		long(255, 300, "a"), long(255, 300, "b"), // the column of many an inbox ends at 255
		long(255, 256, "a"), long(255, 256, "b"),
		{Consumer: consumer, ID: strings.Repeat("k", 255)},
		long(1023, 1024, "a"), long(1023, 1024, "b"),
		long(inbox.MaxIDLength-1, inbox.MaxIDLength, "a"), long(inbox.MaxIDLength-1, inbox.MaxIDLength, "b"),
	})
}

// noise gives bytes that no database can compress below the size of an index entry.
func noise(length int, seed string) string {
	var b []byte
	for sum := sha256.Sum256([]byte(seed)); len(b) < length; sum = sha256.Sum256(sum[:]) {
		b = append(b, sum[:]...)
	}
	return string(b[:length])
}

func (s *suite) d4limit(t *testing.T) {
	most, more := noise(inbox.MaxIDLength, "most"), noise(inbox.MaxIDLength+1, "more")
	for _, c := range []struct {
		part string
		key  func(value string) inbox.Key
	}{
		{"id", func(value string) inbox.Key { return inbox.Key{Consumer: consumer, ID: value} }},
		{"source", func(value string) inbox.Key { return inbox.Key{Consumer: consumer, Source: value, ID: "1"} }},
		{"consumer", func(value string) inbox.Key { return inbox.Key{Consumer: value, ID: "1"} }},
	} {
		t.Run(c.part, func(t *testing.T) {
			r := s.rig(t, Options{}, namedConfig())
			r.requireApart(t, []inbox.Key{c.key(most), c.key(most[:len(most)-1]), c.key(most[:len(most)-1] + "\x00")})
			rows := r.Rows(t)

			err := r.handle(named(c.key(more)), func(*message.Message) ([]*message.Message, error) {
				t.Error("the handler was called")
				return nil, nil
			})
			require.ErrorIs(t, err, inbox.ErrMessageIDTooLong)
			require.ErrorContains(t, err, c.part)
			require.True(t, inbox.IsPermanent(err), "no retry of the message cures it")
			require.Equal(t, 1, r.events.count(inbox.OutcomeRefused))
			require.Equal(t, rows, r.Rows(t), "a refused message leaves no row")
		})
	}
}
