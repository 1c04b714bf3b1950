package inbox_test

import (
	"errors"
	"strings"
	"testing"
	"testing/quick"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	inbox "github.com/watermill-contrib/watermill-inbox"
)

func TestByUUID(t *testing.T) {
	t.Parallel()
	source, id, err := inbox.ByUUID()(message.NewMessage("42", nil))
	require.NoError(t, err)
	require.Empty(t, source)
	require.Equal(t, "42", id)

	_, id, err = inbox.ByUUID()(message.NewMessage("", nil))
	require.NoError(t, err, "the middleware refuses an empty id")
	require.Empty(t, id)
}

func TestByMetadata(t *testing.T) {
	t.Parallel()
	identity := inbox.ByMetadata("event_id")
	source, id, err := identity(withMetadata("event_id", "a/b"))
	require.NoError(t, err)
	require.Empty(t, source)
	require.Equal(t, "a/b", id)

	for name, msg := range map[string]*message.Message{
		"missing":         withMetadata("other", "42"),
		"empty":           withMetadata("event_id", ""),
		"other case":      withMetadata("Event_ID", "42"),
		"no metadata":     {UUID: "42"},
		"only its own ID": message.NewMessage("42", nil),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, id, err := identity(msg)
			require.ErrorIs(t, err, inbox.ErrNoMessageID)
			require.ErrorContains(t, err, `"event_id"`)
			require.Empty(t, id)
		})
	}
}

func TestByJoinedMetadata(t *testing.T) {
	t.Parallel()
	identity := inbox.ByJoinedMetadata("source_service", "outbox_id")
	for _, tt := range []struct{ service, outbox, want string }{
		{"shop", "42", "shop/42"},
		{"a/b", "c", `a\/b/c`},
		{"a", "b/c", `a/b\/c`},
		{`a\`, "b", `a\\/b`},
		{`a\/b`, "c", `a\\\/b/c`},
		{" ", "\x00\xff", " /\x00\xff"},
	} {
		source, id, err := identity(withMetadata("source_service", tt.service, "outbox_id", tt.outbox))
		require.NoError(t, err)
		require.Empty(t, source)
		require.Equal(t, tt.want, id)
	}

	_, id, err := inbox.ByJoinedMetadata("only")(withMetadata("only", "a/b"))
	require.NoError(t, err)
	require.Equal(t, `a\/b`, id)
}

func TestByJoinedMetadataNeedsEveryField(t *testing.T) {
	t.Parallel()
	identity := inbox.ByJoinedMetadata("a", "b", "c")
	for missing, msg := range map[string]*message.Message{
		`"a"`: withMetadata("b", "1", "c", "1"),
		`"b"`: withMetadata("a", "1", "b", "", "c", "1"),
		`"c"`: withMetadata("a", "1", "b", "1"),
	} {
		_, id, err := identity(msg)
		require.ErrorIs(t, err, inbox.ErrNoMessageID)
		require.ErrorContains(t, err, missing)
		require.Empty(t, id)
	}
	_, _, err := inbox.ByJoinedMetadata()(withMetadata("a", "1"))
	require.ErrorIs(t, err, inbox.ErrNoMessageID)
}

func TestByJoinedMetadataKeepsItsFields(t *testing.T) {
	t.Parallel()
	fields := []string{"a", "b"}
	identity := inbox.ByJoinedMetadata(fields...)
	fields[0] = "c"
	_, id, err := identity(withMetadata("a", "1", "b", "2", "c", "3"))
	require.NoError(t, err)
	require.Equal(t, "1/2", id)
}

// Every list of parts out of the troublesome characters, up to three parts of up to three characters.
func TestByJoinedMetadataHasNoCollisions(t *testing.T) {
	t.Parallel()
	var parts []string
	for _, a := range []string{"x", "/", `\`} {
		parts = append(parts, a)
		for _, b := range []string{"x", "/", `\`} {
			parts = append(parts, a+b)
			for _, c := range []string{"x", "/", `\`} {
				parts = append(parts, a+b+c)
			}
		}
	}
	fields := []string{"0", "1", "2"}
	identities := []inbox.Identity{
		inbox.ByJoinedMetadata(fields[:1]...), inbox.ByJoinedMetadata(fields[:2]...), inbox.ByJoinedMetadata(fields...),
	}
	seen := map[string]string{}
	add := func(list ...string) {
		msg := message.NewMessage("", nil)
		for i, part := range list {
			msg.Metadata.Set(fields[i], part)
		}
		_, id, err := identities[len(list)-1](msg)
		require.NoError(t, err)
		text := strings.Join(list, "\x00")
		other, taken := seen[id]
		require.False(t, taken, "%q and %q are both %q", text, other, id)
		seen[id] = text
	}
	for _, a := range parts {
		add(a)
		for _, b := range parts {
			add(a, b)
			for _, c := range parts {
				add(a, b, c)
			}
		}
	}

	two := identities[1]
	require.NoError(t, quick.Check(func(a, b, c, d string) bool {
		_, one, err1 := two(withMetadata("0", "x"+a, "1", "x"+b))
		_, other, err2 := two(withMetadata("0", "x"+c, "1", "x"+d))
		return err1 == nil && err2 == nil && (one == other) == (a == c && b == d)
	}, nil))
}

func TestByCloudEventsBinary(t *testing.T) {
	t.Parallel()
	for _, prefix := range []string{"ce_", "ce-", "cloudEvents_", "cloudEvents:"} {
		t.Run(prefix, func(t *testing.T) {
			t.Parallel()
			msg := withMetadata(prefix+"id", "42", prefix+"source", "/shop", "content-type", "application/json")
			msg.Payload = []byte(`{"id":"not this","source":"nor this"}`)
			source, id, err := inbox.ByCloudEvents()(msg)
			require.NoError(t, err)
			require.Equal(t, "/shop", source)
			require.Equal(t, "42", id)

			for _, half := range []*message.Message{
				withMetadata(prefix+"id", "42"),
				withMetadata(prefix+"source", "/shop"),
				withMetadata(prefix+"id", "42", prefix+"source", ""),
			} {
				source, id, err := inbox.ByCloudEvents()(half)
				require.ErrorIs(t, err, inbox.ErrNoMessageID)
				require.ErrorContains(t, err, "both id and source")
				require.Empty(t, source+id)
			}
		})
	}
}

func TestByCloudEventsStructured(t *testing.T) {
	t.Parallel()
	for _, field := range []string{"content-type", "Content-Type", "content_type"} {
		for _, contentType := range []string{"application/cloudevents+json", "application/cloudevents+json; charset=UTF-8"} {
			msg := withMetadata(field, contentType)
			msg.Payload = []byte(`{"specversion":"1.0","id":"4\u0032","source":"/shop","type":"order","data":{"id":"no"}}`)
			source, id, err := inbox.ByCloudEvents()(msg)
			require.NoError(t, err)
			require.Equal(t, "/shop", source)
			require.Equal(t, "42", id)
		}
	}
}

func TestByCloudEventsRefuses(t *testing.T) {
	t.Parallel()
	const structured = "application/cloudevents+json"
	for _, tt := range []struct {
		name, contentType, payload string
		noID                       bool // else refused as unreadable
	}{
		{"no attributes at all", "", `{"id":"42","source":"/shop"}`, true},
		{"plain JSON", "application/json", `{"id":"42","source":"/shop"}`, true},
		{"a batch", "application/cloudevents-batch+json", `[{"id":"42","source":"/shop"}]`, true},
		{"no id", structured, `{"source":"/shop"}`, true},
		{"empty id", structured, `{"id":"","source":"/shop"}`, true},
		{"null id", structured, `{"id":null,"source":"/shop"}`, true},
		{"no source", structured, `{"id":"42"}`, true},
		{"null", structured, `null`, true},
		{"numeric id", structured, `{"id":42,"source":"/shop"}`, false},
		{"no JSON", structured, `<xml/>`, false},
		{"cut off", structured, `{"id":"42","source":"/shop"`, false},
		{"empty", structured, ``, false},
		{"a list", structured, `[]`, false},
		{"a second one behind it", structured, `{"id":"42","source":"/shop"}{"id":"43"}`, false},
		{"numeric source", structured, `{"id":"42","source":1}`, false},
		{"no Unicode", structured, "{\"id\":\"\xff\",\"source\":\"/shop\"}", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			msg := withMetadata("content-type", tt.contentType)
			msg.Payload = []byte(tt.payload)
			source, id, err := inbox.ByCloudEvents()(msg)
			require.Error(t, err)
			require.Empty(t, source+id)
			require.Equal(t, tt.noID, errors.Is(err, inbox.ErrNoMessageID))

			// Behind the middleware each of them is refused for good.
			store := newFakeStore()
			_, err = mustNew(t, store, inbox.Config{Identity: inbox.ByCloudEvents()}).As("c")(nothing)(msg)
			require.True(t, inbox.IsPermanent(err), err)
			require.Zero(t, store.calls.Load())
		})
	}
}

// JSON text that is no Unicode has no string of its own in Go: encoding/json puts U+FFFD in its place. Two ids that
// differ in it must not become one.
func TestByCloudEventsKeepsBrokenTextApart(t *testing.T) {
	t.Parallel()
	seen := map[string]string{}
	for _, text := range []string{"\ufffd", "\xff", "\xfe", `\ud800`, `\ud801`, `\udc00`} {
		msg := withMetadata("content-type", "application/cloudevents+json")
		msg.Payload = []byte(`{"id":"` + text + `","source":"/shop"}`)
		_, id, err := inbox.ByCloudEvents()(msg)
		if err != nil {
			continue // refused is fine
		}
		other, taken := seen[id]
		require.False(t, taken, "%q and %q are both %q", text, other, id)
		seen[id] = text
	}
}

// The attribute names of CloudEvents are lower case: another spelling is another attribute, and not the id.
func TestByCloudEventsTakesNoOtherSpelling(t *testing.T) {
	t.Parallel()
	msg := withMetadata("content-type", "application/cloudevents+json")
	msg.Payload = []byte(`{"id":"42","source":"/shop","ID":"43","Source":"/x"}`)
	source, id, err := inbox.ByCloudEvents()(msg)
	if err == nil { // refused is fine
		require.Equal(t, "/shop 42", source+" "+id)
	}
}

func withMetadata(pairs ...string) *message.Message {
	msg := message.NewMessage("uuid", nil)
	for i := 0; i < len(pairs); i += 2 {
		msg.Metadata.Set(pairs[i], pairs[i+1])
	}
	return msg
}
