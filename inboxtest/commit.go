package inboxtest

import "sync"

// DropCommitReply swallows the replies to the next n COMMITs that the server reports as done,
// and resets the connection of the client that waits for each: the transaction is committed,
// but its client cannot know. The server's side is complete before the client's ends. A
// COMMIT that the server answers with ROLLBACK or an error is not counted. n replaces what
// remained of an earlier call; 0 turns the fault off.
func (p *Proxy) DropCommitReply(n int) {
	p.commits.mu.Lock()
	defer p.commits.mu.Unlock()
	p.commits.drops = n
}

// OnCommit calls f each time a client's COMMIT has reached the proxy and waits for it to return
// before the COMMIT is forwarded to the server; what the client sent in front of it has been
// forwarded, though perhaps not executed yet. f runs on the connection's own goroutine, several at once if several
// connections commit, and may switch the proxy's faults: after CutAll the server never sees
// the COMMIT. A query of several statements that contains a COMMIT is held as a whole.
// OnCommit(nil) turns the hook off.
func (p *Proxy) OnCommit(f func()) {
	p.commits.mu.Lock()
	defer p.commits.mu.Unlock()
	p.commits.hook = f
}

type commitFaults struct {
	mu    sync.Mutex
	hook  func()
	drops int
}

// drop tells whether to drop the reply to a COMMIT, and uses up one drop.
func (c *commitFaults) drop() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.drops <= 0 {
		return false
	}
	c.drops--
	return true
}

func (c *commitFaults) hooked() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.hook != nil
}

func (c *commitFaults) run() {
	c.mu.Lock()
	hook := c.hook
	c.mu.Unlock()
	if hook != nil {
		hook()
	}
}
