package inboxtest

import "slices"

// requests are the messages of a client that the server has yet to answer, in order, and so
// tell when the client has its whole answer. Each answer names what it answers only by its
// place; the lists of the protocol's chapter "Message Flow" are the source.
type requests struct {
	waiting []byte // the types of the messages
	skip    bool   // after an error the server ignores everything until Sync
	flushed bool   // the last message makes the server send what it has
}

// add takes a message of the client and returns false if the server will ignore it.
func (r *requests) add(kind byte) bool {
	switch kind {
	case 'S', 'H', 'Q', 'F', 'c', 'f':
		r.flushed = true
	default:
		r.flushed = false
	}
	if r.skip && kind != 'S' {
		return false
	}
	switch kind {
	case 'P', 'B', 'D', 'C', 'E', 'S', 'Q', 'F':
		r.waiting = append(r.waiting, kind)
		r.skip = false
	}
	return true
}

// answer takes a message of the server and tells whether it ends a statement.
func (r *requests) answer(kind byte) (statement bool) {
	switch kind {
	case '1':
		r.pop('P')
	case '2':
		r.pop('B')
	case '3':
		r.pop('C')
	case 'T', 'n': // also part of a simple query, which ReadyForQuery ends
		r.pop('D')
	case 'C', 'I':
		r.pop('E')
		return true
	case 's': // PortalSuspended: the statement is not over, but this Execute is
		r.pop('E')
	case 'G': // COPY FROM STDIN: until it ends the server ignores Sync and Flush
		r.waiting = r.waiting[:min(1, len(r.waiting))]
	case 'E':
		return r.fail()
	case 'Z':
		r.waiting = slices.Delete(r.waiting, 0, min(r.ready()+1, len(r.waiting)))
	}
	return false
}

// answered tells whether the client has everything it may wait for.
func (r *requests) answered() bool {
	return len(r.waiting) == 0 && r.flushed
}

// readyFollows tells whether a ReadyForQuery is on its way.
func (r *requests) readyFollows() bool {
	return r.ready() < len(r.waiting)
}

// fail takes an error, which ends all requests up to the next Sync. It tells whether one of
// them was a statement: an error may also be about a Parse alone, or about no request at all.
func (r *requests) fail() (statement bool) {
	end := r.ready()
	if end < len(r.waiting) && r.waiting[end] != 'S' {
		return true // a simple query or function call: its ReadyForQuery follows
	}
	statement = slices.Contains(r.waiting[:end], 'E')
	r.skip = end == len(r.waiting) && end > 0
	r.waiting = slices.Delete(r.waiting, 0, end)
	return statement
}

// ready returns the place of the first message that ReadyForQuery answers, or the length.
func (r *requests) ready() int {
	i := slices.IndexFunc(r.waiting, func(kind byte) bool {
		return kind == 'S' || kind == 'Q' || kind == 'F'
	})
	if i < 0 {
		return len(r.waiting)
	}
	return i
}

func (r *requests) pop(kind byte) {
	if len(r.waiting) > 0 && r.waiting[0] == kind {
		r.waiting = slices.Delete(r.waiting, 0, 1)
	}
}
