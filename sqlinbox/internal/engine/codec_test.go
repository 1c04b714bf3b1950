package engine_test

import (
	"strings"
	"testing"
	"testing/quick"

	"github.com/stretchr/testify/require"

	"github.com/watermill-contrib/watermill-inbox/sqlinbox/internal/engine"
)

// The text stands in the tables of earlier versions and is compared with: it must stay as it is.
func TestEncodeTextIsPinned(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":             "",
		"charge/42":    "charge/42",
		" ~":           " ~",
		"a\\b/c":       `a\x5cb/c`,
		`\x00`:         `\x5cx00`,
		"\x00":         `\x00`,
		"\x1f\x7f\x80": `\x1f\x7f\x80`,
		"\xff\xfe":     `\xff\xfe`,
		"ö":            `\xc3\xb6`,
		"😀":            `\xf0\x9f\x98\x80`,
		"a\tb\nc":      `a\x09b\x0ac`,
		"'; --":        "'; --",
	} {
		require.Equal(t, want, engine.EncodeText(text), "%q", text)
	}
}

// Every single byte, and every pair out of the bytes that play a part in the encoding.
func TestEncodeTextHasNoCollisions(t *testing.T) {
	t.Parallel()
	seen := map[string]string{}
	add := func(s string) {
		encoded := engine.EncodeText(s)
		other, taken := seen[encoded]
		require.False(t, taken && other != s, "%q and %q are both %q", s, other, encoded)
		seen[encoded] = s
	}
	for c := range 256 {
		add(string([]byte{byte(c)}))
	}
	parts := []string{`\`, "x", "0", "5", "c", "\x00", "\x05", "\x5c", `\x5c`, `\x00`}
	for _, a := range parts {
		for _, b := range parts {
			for _, c := range parts {
				for _, d := range parts {
					add(a + b + c + d)
				}
			}
		}
	}
}

func TestEncodeTextProperties(t *testing.T) {
	t.Parallel()
	require.NoError(t, quick.Check(func(s []byte) bool {
		checkText(t, string(s))
		return !t.Failed()
	}, &quick.Config{MaxCount: 2000}))
}

func FuzzEncodeText(f *testing.F) {
	for _, s := range []string{"", "charge", `a\b/c`, "\x00\xff", "ö", "\\x5c"} {
		f.Add(s)
	}
	f.Fuzz(checkText)
}

func checkText(t *testing.T, s string) {
	encoded := engine.EncodeText(s)
	for _, c := range []byte(encoded) {
		require.True(t, c >= ' ' && c <= '~', "%q has %#x", encoded, c)
	}
	require.Equal(t, s, decodeText(encoded), "it can be read back, so no two texts encode alike")
}

// decodeText undoes EncodeText.
func decodeText(s string) string {
	const digits = "0123456789abcdef"
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' {
			b.WriteByte(s[i])
			continue
		}
		high, low := strings.IndexByte(digits, s[i+2]), strings.IndexByte(digits, s[i+3])
		b.WriteByte(byte(high<<4 | low))
		i += 3
	}
	return b.String()
}
