package sqlinbox

import (
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	inbox "github.com/watermill-contrib/watermill-inbox"
)

// bytes16 is how 16 bytes are passed to the database: a UUID's text on PostgreSQL, bytes elsewhere.
func (b *backend) bytes16(v [16]byte) any {
	if b.config.Dialect == PostgreSQL {
		return inbox.StorageKey(v).String()
	}
	return v[:]
}

// parse16 reads what the database gives for 16 bytes: the bytes, or a UUID's text.
func parse16(v []byte) (out [16]byte, err error) {
	if len(v) == len(out) {
		return [16]byte(v), nil
	}
	raw, err := hex.DecodeString(strings.ReplaceAll(string(v), "-", ""))
	if err == nil && len(raw) != len(out) {
		err = fmt.Errorf("%d bytes, not 16", len(raw))
	}
	if err != nil {
		return out, err
	}
	return [16]byte(raw), nil
}

// time is how a message time is passed: Unix milliseconds on SQLite; the zero time is NULL.
func (b *backend) time(t time.Time) any {
	switch {
	case t.IsZero():
		return nil
	case b.config.Dialect == SQLite:
		return t.UnixMilli()
	case b.config.Dialect == MySQL: // as text: the driver would write it in the DSN's time zone
		return t.UTC().Format("2006-01-02 15:04:05.999999")
	}
	return t
}

// uuidArray is the text of a PostgreSQL array, which every driver passes.
func uuidArray(keys []inbox.StorageKey) string {
	texts := make([]string, len(keys))
	for i, key := range keys {
		texts[i] = key.String()
	}
	return "{" + strings.Join(texts, ",") + "}"
}
