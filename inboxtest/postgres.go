package inboxtest

import (
	"bytes"
	"sync"
)

// phase is how far a connection has come, and whether it can be read at all.
type phase int

const (
	phaseStartup  phase = iota // untyped packets of the client
	phaseAuth                  // until the first ReadyForQuery
	phaseQueries               // counted
	phaseUnparsed              // another protocol, a cancel request or encryption
)

// session follows PostgreSQL's frontend/backend protocol on one connection, with both
// directions in view, or hands both over to mysqlSession.
type session struct {
	stats   *stats
	commits *commitFaults

	mu         sync.Mutex
	phase      phase
	client     framer
	server     framer
	requests   requests
	flight     bool // the client sent something and has not been answered in full
	dropping   bool // a COMMIT's reply is being dropped
	statements map[string]string
	portals    map[string]string

	mysql *mysqlSession // set where the server turned out to be one
}

func newSession(stats *stats, commits *commitFaults) *session {
	return &session{
		stats:      stats,
		commits:    commits,
		statements: map[string]string{},
		portals:    map[string]string{},
	}
}

// fromClient takes what the client sent and returns what is to be forwarded: whole messages
// only, in several parts if there are COMMITs to pause at, one pause between each two. answer
// is for the client.
func (s *session) fromClient(data []byte) (parts [][]byte, answer []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mysql != nil {
		return s.mysql.fromClient(data), nil
	}
	f := &s.client
	f.add(data)
	start := 0
	for s.phase == phaseStartup && len(f.buf) > f.used {
		code, complete := f.packet()
		switch {
		case code == codeSSL || code == codeGSS:
			answer = append(answer, 'N')
			start = f.used
		case complete && code>>16 == codeVersion3:
			s.phase = phaseAuth
		case complete:
			s.phase = phaseUnparsed
		default:
			return nil, answer
		}
	}
	for s.phase == phaseAuth || s.phase == phaseQueries {
		before := f.used
		kind, body, ok := f.message()
		if !ok {
			break
		}
		if s.phase == phaseQueries {
			if s.pausesAt(kind, body) {
				parts = append(parts, f.buf[start:before])
				start = before
			}
			s.sent(kind, body)
		}
	}
	if s.phase == phaseUnparsed || !f.sound() {
		s.phase = phaseUnparsed
		f.used = len(f.buf)
	}
	return append(parts, f.buf[start:f.used]), answer
}

// fromServer takes what the server sent and returns what is to be forwarded to the client, and
// whether the connection is to be cut after that.
func (s *session) fromServer(data []byte) (forward []byte, cut bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.phase == phaseStartup { // PostgreSQL's server never speaks first
		s.phase = phaseUnparsed
		if isMySQL(data) {
			s.mysql = &mysqlSession{session: s}
		}
	}
	if s.mysql != nil {
		return s.mysql.fromServer(data)
	}
	f := &s.server
	f.add(data)
	end := 0 // of what is forwarded
	for s.phase != phaseUnparsed {
		kind, body, ok := f.message()
		if !ok {
			break
		}
		if kind == 'C' && !s.dropping && tag(body) == "COMMIT" && s.commits.drop() {
			s.dropping = true
			s.stats.count(Counts{DroppedCommits: 1})
		}
		s.received(kind)
		// The COMMIT is done when its tag is here, but let the server finish its answer.
		cut = cut || s.dropping && (kind == 'Z' || !s.requests.readyFollows())
		if !s.dropping {
			end = f.used
		}
	}
	if s.phase == phaseUnparsed || !f.sound() {
		s.phase = phaseUnparsed
		f.used = len(f.buf)
		end = f.used
	}
	return f.buf[:end], cut
}

// sent follows one message of the client.
func (s *session) sent(kind byte, body []byte) {
	if kind == 'X' {
		return
	}
	if !s.flight {
		s.flight = true
		s.stats.count(Counts{RoundTrips: 1})
	}
	if !s.requests.add(kind) {
		return
	}
	switch first, rest := cstring(body); kind {
	case 'P':
		s.statements[first], _ = cstring(rest)
		if first != "" {
			s.stats.count(Counts{Prepares: 1})
		}
	case 'B':
		statement, _ := cstring(rest)
		s.portals[first] = s.statements[statement]
	case 'E':
		s.stats.record(s.portals[first])
	case 'Q':
		s.stats.record(first)
	case 'C':
		if name, ok := bytes.CutPrefix(body, []byte{'S'}); ok {
			name, _ := cstring(name)
			delete(s.statements, name)
		}
	}
}

// received follows one message of the server, just before the client gets it.
func (s *session) received(kind byte) {
	if s.phase == phaseAuth {
		if kind == 'Z' {
			s.phase = phaseQueries
		}
		return
	}
	if s.requests.answer(kind) {
		s.stats.count(Counts{Statements: 1})
	}
	// CopyInResponse and CopyBothResponse give the turn to the client.
	if s.requests.answered() || kind == 'G' || kind == 'W' {
		s.flight = false
	}
}

// pausesAt tells whether a message of the client makes the server commit and somebody wants to
// know that.
func (s *session) pausesAt(kind byte, body []byte) bool {
	if kind != 'Q' && kind != 'E' || s.requests.skip || !s.commits.hooked() {
		return false
	}
	sql, _ := cstring(body)
	if kind == 'E' {
		sql = s.portals[sql]
	}
	return isCommit(sql)
}

// tag is the text of a CommandComplete.
func tag(body []byte) string {
	tag, _ := cstring(body)
	return tag
}
