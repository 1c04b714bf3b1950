package engine

import (
	"context"
	"crypto/rand"
	"fmt"

	inbox "github.com/watermill-contrib/watermill-inbox"
)

// Reader reads what stands under a key: a Backend outside any transaction, a Tx in its own.
type Reader interface {
	Look(ctx context.Context, c *Claim) (*Row, error)
}

// NewToken gives the fence of a new lease.
func NewToken() (t Token) {
	_, _ = rand.Read(t[:]) // never fails
	return t
}

// ClaimFor is the claim of a delivery that is to be stored, once its consumer's key scheme is known to be its own. Inside
// a transaction of ctx that is not asked: it would take another connection, which may wait for this transaction.
func (e *Engine) ClaimFor(ctx context.Context, d inbox.Delivery) (*Claim, error) {
	p := &process{Engine: e, d: d, key: d.StorageKey()}
	p.claim = newClaim(d, p.key, e.settings.LockSpace)
	if scopeFrom(ctx) != nil {
		return p.claim, nil
	}
	if err := p.checkScheme(ctx, e.settings.InFlightWait); err != nil {
		return nil, e.StoreError(err)
	}
	return p.claim, nil
}

// Classify tells what a delivery is whose key was taken when it was to be stored.
func (e *Engine) Classify(ctx context.Context, d inbox.Delivery, c *Claim) (inbox.Result, error) {
	backend, ok := e.backend.(Reader)
	if !ok {
		return inbox.Result{}, inbox.ErrNoQueue
	}
	return e.ClassifyBy(ctx, backend, d, c)
}

// ClassifyBy is Classify by another reader: a transaction.
func (e *Engine) ClassifyBy(ctx context.Context, reader Reader, d inbox.Delivery, c *Claim) (inbox.Result, error) {
	p := &process{Engine: e, d: d, key: c.Key, claim: c}
	p.epoch = e.done.epoch.Load()
	row, err := reader.Look(ctx, c)
	switch {
	case err != nil:
		return p.result, e.StoreError(err)
	case !row.Found && !row.Late: // in flight inline, or just rolled back
		return p.result, fmt.Errorf("%w (its intake does not wait)", inbox.ErrInFlight)
	}
	err = p.classify(row)
	p.result.Messages = nil
	return p.result, err
}

// StoreError names what went wrong with storing a message.
func (e *Engine) StoreError(err error) error {
	f := e.faultOf(err)
	switch f {
	case FaultOther, FaultBusy:
		f = FaultUnavailable
	}
	return Named(f, err)
}

// MayBeOneRow tells whether an error may have been caused by a single row of many.
func (e *Engine) MayBeOneRow(err error) bool {
	switch e.faultOf(err) {
	case FaultOther, FaultBusy, FaultNoPartition, FaultSerialization:
		return true
	}
	return false
}

// Completing tells that the transaction that ends the lease has begun: from there on its row is locked.
func (l *Lease) Completing() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.completing || l.state == LeaseDone
}

func (l *Lease) complete(completing bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.completing = completing
}

// Lose notes that the lease is lost; false if its end was reached before.
func (l *Lease) Lose() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state == LeaseDone || l.completing {
		return false
	}
	l.state, l.err = LeaseLost, inbox.ErrLeaseLost
	return true
}

// Lane is the number of the messages of a consumer with one order key, and of their lock; 0 is none.
func (e *Engine) Lane(consumer, orderKey string) int64 {
	if orderKey == "" {
		return 0
	}
	lane := e.settings.LaneSpace.ID(inbox.Key{Consumer: consumer, ID: orderKey}.Storage())
	if lane == 0 {
		return 1
	}
	return lane
}

// StoreTx is a Tx into which messages can be stored for later.
type StoreTx interface {
	Tx
	Reader
	// StoreItems stores the items, whose keys differ, in this transaction, and tells for each whether it was new.
	StoreItems(ctx context.Context, items []*Item) ([]bool, error)
	// KeepsOrder tells that a lane's lock makes what was committed before visible in this transaction: not at an isolation
	// level with a snapshot of its own.
	KeepsOrder() bool
}

// Item is one message to be stored.
type Item struct {
	Claim    *Claim
	Consumer inbox.StorageKey
	Lane     int64 // 0: no order
	Message  []byte
}

// TxFor gives the open transaction of this engine that ctx carries, nil for none; one that is not begun yet begins now.
func (e *Engine) TxFor(ctx context.Context) (StoreTx, error) {
	s := scopeFrom(ctx)
	if s == nil {
		return nil, nil //nolint:nilnil // none
	}
	if s.engine != e {
		return nil, inbox.ErrNested
	}
	current := s.tx
	if s.begin != nil {
		begun, err := s.begin(ctx)
		if err != nil {
			return nil, err
		}
		current = begun
	}
	s.used.Store(true)
	tx, ok := current.(StoreTx)
	if !ok {
		return nil, inbox.ErrNoQueue
	}
	return tx, nil
}

// AfterCommit notes what to do when the transaction of ctx has been committed.
func (e *Engine) AfterCommit(ctx context.Context, fn func()) {
	if s := scopeFrom(ctx); s != nil {
		s.operations.mu.Lock()
		s.afterCommit = append(s.afterCommit, fn)
		s.operations.mu.Unlock()
	}
}

func (s *Scope) committed() {
	s.operations.mu.Lock()
	fns := s.afterCommit
	s.afterCommit = nil
	s.operations.mu.Unlock()
	for _, fn := range fns {
		fn()
	}
}
