package engine

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	inbox "github.com/watermill-contrib/watermill-inbox"
)

// Scope is what a handler's context knows of its transaction. It stays in contexts that outlive the transaction and
// says itself when it is over.
type Scope struct {
	// Handle is the driver's transaction, a pgx.Tx or a *sql.Tx.
	Handle any

	// begin gives the transaction of a leased message, which begins when it is first asked for; nil: Handle is there.
	begin func(ctx context.Context) (LeaseTx, error)

	leased      *Lease // of the message; nil: it was not queued
	engine      *Engine
	tx          Tx
	record      bool // what the handler returns is recorded
	operations  operations
	afterCommit []func()
	repeated    atomic.Bool // the whole message asks for an operation that was done before

	used atomic.Bool
	over atomic.Bool
	doom atomic.Pointer[error]
}

// Doom makes sure that the transaction is rolled back with err, whatever the handler returns. The first one counts.
func (s *Scope) Doom(err error) { s.doom.CompareAndSwap(nil, &err) }

func (s *Scope) doomed() error {
	if err := s.doom.Load(); err != nil {
		return *err
	}
	return nil
}

func (s *Scope) close() { s.over.Store(true) }

// Over tells that the handler has returned.
func (s *Scope) Over() bool { return s.over.Load() }

type scopeKey struct{}

func withScope(ctx context.Context, s *Scope) context.Context {
	return context.WithValue(ctx, scopeKey{}, s)
}

// scopeFrom gives the scope of an open transaction, nil for none.
func scopeFrom(ctx context.Context) *Scope {
	s, _ := ctx.Value(scopeKey{}).(*Scope)
	if s == nil || s.over.Load() {
		return nil
	}
	return s
}

// TxFromContext gives the handler's transaction as a T, or an inbox.ErrNoTx that tells why there is none.
func TxFromContext[T any](ctx context.Context) (T, error) {
	var none T
	s, _ := ctx.Value(scopeKey{}).(*Scope)
	switch {
	case s == nil:
		return none, inbox.ErrNoTx
	case s.over.Load():
		return none, fmt.Errorf("%w (the transaction that this context carried is over)", inbox.ErrNoTx)
	}
	handle := s.Handle
	if s.begin != nil {
		begun, err := s.begin(ctx)
		if err != nil {
			return none, err
		}
		handle = begun.Scope().Handle
	}
	tx, ok := handle.(T)
	if !ok {
		return none, fmt.Errorf("%w (the open transaction is a %T: it belongs to another store)", inbox.ErrNoTx, handle)
	}
	s.used.Store(true)
	return tx, nil
}

// operations are those of one transaction.
type operations struct {
	mu       sync.Mutex
	proposed *OperationClaim // claimed with the message, and not taken up yet
	proposal Proposal
	states   map[inbox.StorageKey]*operationState
	held     []inbox.StorageKey // in the engine's line of operations

	completions []completion // of a queued message, to be done with it
}

// operationState is an operation whose work was run in this transaction. A savepoint may have undone it since: what the
// database says of the claim counts.
type operationState struct {
	running         bool
	value, messages []byte
}

func (o *operations) propose(c *OperationClaim, p Proposal) { o.proposed, o.proposal = c, p }

// takeProposal gives what became of the proposed claim if it is this one.
func (s *Scope) takeProposal(claim *OperationClaim) Proposal {
	o := &s.operations
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.proposed == nil || o.proposed.Key != claim.Key || o.proposed.Fingerprint != claim.Fingerprint ||
		o.proposed.Scope != claim.Scope || o.proposed.ID != claim.ID {
		return NoProposal
	}
	proposal := o.proposal
	o.proposed, o.proposal = nil, NoProposal
	return proposal
}

// isProposal tells that the row is this transaction's own proposal, which nobody took up.
func (s *Scope) isProposal(claim *OperationClaim, row *OperationRow) bool {
	proposed, proposal := s.operations.unused()
	return proposal == ProposalClaimed && proposed.Key == claim.Key && proposed.Fingerprint == row.Fingerprint
}

// unused gives a proposal that nobody took up.
func (o *operations) unused() (*OperationClaim, Proposal) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.proposed, o.proposal
}

func (o *operations) running(key inbox.StorageKey) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	state := o.states[key]
	return state != nil && state.running
}

func (o *operations) begin(key inbox.StorageKey) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.states == nil {
		o.states = map[inbox.StorageKey]*operationState{}
	}
	o.states[key] = &operationState{running: true}
}

func (o *operations) end(key inbox.StorageKey) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.states[key].running = false
}

func (o *operations) keep(key inbox.StorageKey, value, messages []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.states[key].value, o.states[key].messages = value, messages
}

func (o *operations) kept(key inbox.StorageKey) (value, messages []byte, own bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	state := o.states[key]
	if state == nil {
		return nil, nil, false
	}
	return state.value, state.messages, true
}

// hold takes the place in front of the line of those in this process who wait for the operation.
func (s *Scope) hold(ctx context.Context, claim *OperationClaim) {
	if _, err := s.engine.operations.enter(ctx, claim.Key, 0); err != nil { // somebody who is about to leave
		return
	}
	s.operations.mu.Lock()
	s.operations.held = append(s.operations.held, claim.Key)
	s.operations.mu.Unlock()
}

// release lets those behind go, when the transaction is over.
func (s *Scope) release() {
	s.operations.mu.Lock()
	held := s.operations.held
	s.operations.held = nil
	s.operations.mu.Unlock()
	for _, key := range held {
		s.engine.operations.leave(key)
	}
}
