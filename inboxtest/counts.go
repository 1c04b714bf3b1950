package inboxtest

import (
	"slices"
	"sync"
)

// logSize is how many statements Log remembers.
const logSize = 1000

// Counts is what the PostgreSQL clients of a Proxy did. What a connection does until it is
// ready for its first query (start-up, authentication) is not counted.
type Counts struct {
	// RoundTrips is how often a client sent something and waited for the answer. All that is
	// sent before the answer to it has been delivered is one round trip, however many packets,
	// statements or Syncs it takes. Two Syncs that are sent one after the other without waiting
	// count as two if the first is answered before the second reaches the proxy: with a
	// pipelining client, set a latency. The good-bye of a closing connection does not count.
	RoundTrips int
	// Statements is how many statements the server executed, failed ones included. Those that
	// come in one string, as "BEGIN; INSERT …", count singly.
	Statements int
	// Prepares is how many named prepared statements were made.
	Prepares int
	// DroppedCommits is how many replies to a COMMIT were dropped; see Proxy.DropCommitReply.
	DroppedCommits int
}

// Counts returns what all connections did since the start or the last ResetCounts. An exchange
// is counted before its reply is delivered, so the counts of a client that has all its answers
// are complete.
func (p *Proxy) Counts() Counts {
	p.stats.mu.Lock()
	defer p.stats.mu.Unlock()
	return p.stats.counts
}

// ResetCounts sets all counts to zero and empties the log. A round trip that is under way was
// counted at its beginning and is not counted again.
func (p *Proxy) ResetCounts() {
	p.stats.mu.Lock()
	defer p.stats.mu.Unlock()
	p.stats.counts = Counts{}
	p.stats.log = nil
}

// Log returns the SQL texts that clients asked to execute, in the order of their sending and
// without their arguments (which MySQL's clients may have written into the text): the last
// thousand at most.
func (p *Proxy) Log() []string {
	p.stats.mu.Lock()
	defer p.stats.mu.Unlock()
	return slices.Clone(p.stats.log[max(0, len(p.stats.log)-logSize):])
}

type stats struct {
	mu     sync.Mutex
	counts Counts
	log    []string
}

func (s *stats) count(add Counts) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts.RoundTrips += add.RoundTrips
	s.counts.Statements += add.Statements
	s.counts.Prepares += add.Prepares
	s.counts.DroppedCommits += add.DroppedCommits
}

func (s *stats) record(sql string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.log) == 2*logSize {
		s.log = append(s.log[:0], s.log[logSize:]...)
	}
	s.log = append(s.log, sql)
}
