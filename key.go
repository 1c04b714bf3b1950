package inbox

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"strconv"
	"strings"
	"time"
)

// Key names one message in one consumer's memory: who handles it, whose id space the id is from, and the id.
// Two deliveries with an equal Key are copies of one message; everything else is a different message.
type Key struct {
	// Consumer is whose memory it is: Config.Namespace and the handler's name, or what Config.Consumer says.
	Consumer string
	// Source is the id space of the producer; empty when all producers share one.
	Source string
	// ID is the message id, any bytes, up to [MaxIDLength].
	ID string
}

// MaxIDLength is the largest message id, source or consumer in bytes that the inbox accepts.
const MaxIDLength = 4096

// String gives consumer/id or consumer/source/id for logs and errors: printable ASCII, long parts cut. It is not a
// lossless encoding; two keys may print alike.
func (k Key) String() string {
	var b strings.Builder
	writePart(&b, k.Consumer)
	if k.Source != "" {
		b.WriteByte('/')
		writePart(&b, k.Source)
	}
	b.WriteByte('/')
	writePart(&b, k.ID)
	return b.String()
}

// writePart appends at most 120 bytes of s, the bytes that a log line should not hold escaped.
func writePart(b *strings.Builder, s string) {
	const most = 120
	cut := len(s) > most
	if cut {
		s = s[:most]
	}
	q := strconv.QuoteToASCII(s)
	b.WriteString(q[1 : len(q)-1])
	if cut {
		b.WriteString("...")
	}
}

// StorageKey is the 16 bytes under which a message is remembered: the primary key of the memory.
type StorageKey [16]byte

// String gives the key in the form of a UUID, as PostgreSQL prints it.
func (s StorageKey) String() string {
	h := hex.EncodeToString(s[:])
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}

// The times that a key may carry. 2010 and 2100 in Unix milliseconds begin with the bytes 0x01 and 0x03, so a key
// without a time, whose first byte is 0x00, sorts below all of them.
const (
	earliestKeyTime = 1262304000000 // 2010-01-01
	latestKeyTime   = 4102444800000 // 2100-01-01, exclusive
)

// Storage derives the storage key: SHA-256 over the length-prefixed consumer, source and id, cut to 16 bytes. Where
// the id itself carries a time (UUIDv7, ULID, 2010 to 2100), its 48-bit millisecond prefix replaces the first 6
// bytes, so that time-ordered ids arrive in order in the index; every other key begins with 0x00.
//
// The same Key always gives the same storage key, on every database.
func (k Key) Storage() StorageKey {
	ms, _ := idMillis(k.ID)
	return k.storage(ms)
}

// StorageAt is [Key.Storage] with a time that the producer promised never changes for this message (Config.KeyTime),
// used where the id carries none. The zero time, and times outside 2010 to 2100, are no time.
func (k Key) StorageAt(t time.Time) StorageKey {
	ms, ok := idMillis(k.ID)
	if !ok && !t.IsZero() {
		if u := t.UnixMilli(); u >= earliestKeyTime && u < latestKeyTime {
			ms = uint64(u)
		}
	}
	return k.storage(ms)
}

func (k Key) storage(ms uint64) StorageKey {
	// One buffer on the stack for usual sizes: this runs for every message.
	var stack [256]byte
	b := stack[:0]
	for _, part := range [3]string{k.Consumer, k.Source, k.ID} {
		b = binary.BigEndian.AppendUint32(b, uint32(len(part)))
		b = append(b, part...)
	}
	sum := sha256.Sum256(b)
	var s StorageKey
	copy(s[:], sum[:])
	if ms == 0 {
		s[0] = 0
		return s
	}
	putMillis(s[:6], ms)
	return s
}

// IDTime gives the time that a message id carries in itself: the millisecond of a UUIDv7 or a ULID between the years
// 2010 and 2100. Every other id carries none.
func IDTime(id string) (time.Time, bool) {
	ms, ok := idMillis(id)
	if !ok {
		return time.Time{}, false
	}
	return time.UnixMilli(int64(ms)).UTC(), true
}

func idMillis(id string) (uint64, bool) {
	var ms uint64
	var ok bool
	switch len(id) {
	case 36:
		ms, ok = uuidv7Millis(id)
	case 26:
		ms, ok = ulidMillis(id)
	}
	if !ok || ms < earliestKeyTime || ms >= latestKeyTime {
		return 0, false
	}
	return ms, true
}

// uuidv7Millis reads the canonical text form of RFC 9562 with version 7 and the RFC's variant.
func uuidv7Millis(id string) (uint64, bool) {
	var raw [16]byte
	if id[8] != '-' || id[13] != '-' || id[18] != '-' || id[23] != '-' {
		return 0, false
	}
	n := 0
	for i := 0; i < len(id); i++ {
		if i == 8 || i == 13 || i == 18 || i == 23 {
			continue
		}
		v, ok := hexDigit(id[i])
		if !ok {
			return 0, false
		}
		raw[n/2] = raw[n/2]<<4 | v
		n++
	}
	if raw[6]>>4 != 7 || raw[8]>>6 != 0b10 {
		return 0, false
	}
	return binary.BigEndian.Uint64(raw[:8]) >> 16, true
}

func hexDigit(c byte) (byte, bool) {
	switch {
	case c >= '0' && c <= '9':
		return c - '0', true
	case c >= 'a' && c <= 'f':
		return c - 'a' + 10, true
	case c >= 'A' && c <= 'F':
		return c - 'A' + 10, true
	}
	return 0, false
}

// ulidMillis reads 26 characters of Crockford's base 32; the first ten are the time.
func ulidMillis(id string) (uint64, bool) {
	const alphabet = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
	var ms uint64
	for i := 0; i < len(id); i++ {
		c := id[i]
		if c >= 'a' && c <= 'z' {
			c -= 'a' - 'A'
		}
		v := strings.IndexByte(alphabet, c)
		if v < 0 || (i == 0 && v > 7) {
			return 0, false
		}
		if i < 10 {
			ms = ms<<5 | uint64(v)
		}
	}
	return ms, true
}

func putMillis(b []byte, ms uint64) {
	for i := 5; i >= 0; i-- {
		b[i] = byte(ms)
		ms >>= 8
	}
}
