package inboxtest

import "encoding/binary"

// MySQL's protocol, as far as it is read here
// (https://dev.mysql.com/doc/dev/mysql-server/latest/PAGE_PROTOCOL.html).
const (
	mysqlVersion10 = 0x0a // the first byte of the greeting
	mysqlQuery     = 0x03 // COM_QUERY: a statement's text
	mysqlOK        = 0x00
	mysqlError     = 0xff

	mysqlSSL      = 0x0800 // what the client asks for in its answer to the greeting
	mysqlCompress = 0x0020
	mysqlZstd     = 1 << 26
)

// mysqlSession follows the protocol of MySQL and MariaDB on one connection. It is simpler than PostgreSQL's: a client
// waits for the reply to a command before it sends the next one. Round trips, statements and prepared statements are
// not counted.
type mysqlSession struct {
	*session
	phase  mysqlPhase
	commit bool // a COMMIT waits for its reply
}

type mysqlPhase int

const (
	mysqlGreeting mysqlPhase = iota // the server's, and the client's answer to it
	mysqlAuth                       // until the server's first OK
	mysqlCommands
	mysqlUnparsed // encryption or compression
)

// isMySQL tells whether the bytes that a server speaks first are MySQL's greeting.
func isMySQL(data []byte) bool {
	return len(data) > 4 && data[3] == 0 && data[4] == mysqlVersion10
}

// fromClient is session's fromClient.
func (s *mysqlSession) fromClient(data []byte) (parts [][]byte) {
	f := &s.client
	f.add(data)
	start := 0
	for s.phase != mysqlUnparsed {
		before := f.used
		sequence, payload, ok := f.mysqlPacket()
		if !ok {
			break
		}
		switch {
		case s.phase == mysqlGreeting:
			s.phase = mysqlAuth
			if len(payload) < 4 || binary.LittleEndian.Uint32(payload)&(mysqlSSL|mysqlCompress|mysqlZstd) != 0 {
				s.phase = mysqlUnparsed
			}
		case s.phase == mysqlCommands && sequence == 0 && len(payload) > 0 && payload[0] == mysqlQuery:
			sql := string(payload[1:])
			s.commit = isCommit(sql)
			if s.commit && s.commits.hooked() {
				parts = append(parts, f.buf[start:before])
				start = before
			}
			s.stats.record(sql)
		}
	}
	if s.phase == mysqlUnparsed {
		f.used = len(f.buf)
	}
	return append(parts, f.buf[start:f.used])
}

// fromServer is session's fromServer. The OK packet is the whole reply to a COMMIT.
func (s *mysqlSession) fromServer(data []byte) (forward []byte, cut bool) {
	f := &s.server
	f.add(data)
	for s.phase != mysqlUnparsed {
		before := f.used
		_, payload, ok := f.mysqlPacket()
		if !ok {
			break
		}
		first := byte(mysqlError)
		if len(payload) > 0 {
			first = payload[0]
		}
		switch {
		case s.phase == mysqlAuth && first == mysqlOK:
			s.phase = mysqlCommands
		case s.commit && first == mysqlOK && s.commits.drop():
			s.stats.count(Counts{DroppedCommits: 1})
			return f.buf[:before], true
		}
		s.commit = false
	}
	if s.phase == mysqlUnparsed {
		f.used = len(f.buf)
	}
	return f.buf[:f.used], false
}

// mysqlPacket returns the packet that comes next, when it is whole: three bytes of length, one of sequence, which is 0
// for a command, and the payload. The rest of a payload of 16 MB or more follows in packets of higher sequence.
func (f *framer) mysqlPacket() (sequence byte, payload []byte, ok bool) {
	rest := f.buf[f.used:]
	if len(rest) < 4 {
		return 0, nil, false
	}
	size := int(rest[0]) | int(rest[1])<<8 | int(rest[2])<<16
	if len(rest) < 4+size {
		return 0, nil, false
	}
	f.used += 4 + size
	return rest[3], rest[4 : 4+size], true
}
