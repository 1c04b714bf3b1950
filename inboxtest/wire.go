package inboxtest

import (
	"bytes"
	"encoding/binary"
)

// The codes of the untyped packets that a PostgreSQL client may begin with.
const (
	codeVersion3 = 3 // the upper half; the minor version is in the lower
	codeSSL      = 80877103
	codeGSS      = 80877104
)

// What PostgreSQL's own server accepts at most as an untyped packet and as a message.
const (
	maxPacket  = 10_000
	maxMessage = 1 << 30
)

// framer cuts one direction of a connection into whole messages. It is used by one goroutine.
type framer struct {
	buf  []byte
	used int // how much of buf was given out by the last call
}

// add appends what was read, and drops what was given out before.
func (f *framer) add(data []byte) {
	if f.used > 0 {
		f.buf = f.buf[:copy(f.buf, f.buf[f.used:])]
		f.used = 0
	}
	f.buf = append(f.buf, data...)
}

// packet takes the untyped packet that comes next when it is whole, and returns its code. What
// cannot be such a packet has code 0 and is whole as well, but is not taken.
func (f *framer) packet() (code uint32, complete bool) {
	rest := f.buf[f.used:]
	if rest[0] != 0 { // the length of every packet is less than 10,000
		return 0, true
	}
	if len(rest) < 8 {
		return 0, false
	}
	size := binary.BigEndian.Uint32(rest)
	code = binary.BigEndian.Uint32(rest[4:])
	switch {
	case size < 8 || size > maxPacket:
		return 0, true
	case uint32(len(rest)) < size:
		return 0, false
	case code>>16 == codeVersion3 && !bytes.Contains(rest[8:size], []byte("user\x00")):
		return 0, true // the one parameter every start-up has; Kafka's Metadata looks alike
	}
	f.used += int(size)
	return code, true
}

// message returns the typed message that comes next, when it is whole.
func (f *framer) message() (kind byte, body []byte, ok bool) {
	rest := f.buf[f.used:]
	if len(rest) < 5 {
		return 0, nil, false
	}
	size := int64(binary.BigEndian.Uint32(rest[1:])) + 1
	if int64(len(rest)) < size || size < 5 {
		return 0, nil, false
	}
	f.used += int(size)
	return rest[0], rest[5:size], true
}

// sound tells whether what comes next can be the beginning of a typed message.
func (f *framer) sound() bool {
	rest := f.buf[f.used:]
	if len(rest) < 5 {
		return true
	}
	size := binary.BigEndian.Uint32(rest[1:])
	return 4 <= size && size <= maxMessage
}

// cstring splits a zero-terminated string off a message.
func cstring(body []byte) (string, []byte) {
	s, rest, _ := bytes.Cut(body, []byte{0})
	return string(s), rest
}
