package inboxtest

import (
	"sync"
	"time"
)

// queueBytes bounds what one direction of a connection holds in flight; a sender that is
// further ahead than this waits, as for a full TCP window.
const queueBytes = 16 << 20

// chunk is what one read of a connection gave, and when it may be delivered.
type chunk struct {
	data []byte
	due  time.Time // zero: at once
	made bool      // by the proxy itself, not to be parsed
	end  error     // no data: the sender's side is over, io.EOF or a reset
}

// queue holds one direction's chunks between its reader and its writer, in order.
type queue struct {
	mu     sync.Mutex
	cond   sync.Cond
	chunks []chunk
	bytes  int
	closed bool
}

func newQueue() *queue {
	q := &queue{}
	q.cond.L = &q.mu
	return q
}

// push adds a chunk and returns false when the queue is closed.
func (q *queue) push(c chunk) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.bytes > queueBytes && !q.closed {
		q.cond.Wait()
	}
	if q.closed {
		return false
	}
	q.chunks = append(q.chunks, c)
	q.bytes += len(c.data)
	q.cond.Broadcast()
	return true
}

// pop waits for the next chunk and returns false when the queue is closed.
func (q *queue) pop() (chunk, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.chunks) == 0 && !q.closed {
		q.cond.Wait()
	}
	if q.closed {
		return chunk{}, false
	}
	c := q.chunks[0]
	q.chunks[0] = chunk{}
	q.chunks = q.chunks[1:]
	if q.bytes > queueBytes && q.bytes-len(c.data) <= queueBytes {
		q.cond.Broadcast()
	}
	q.bytes -= len(c.data)
	return c, true
}

func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.chunks = nil
	q.cond.Broadcast()
}
