package engine

import (
	"context"
	"errors"
	"fmt"

	inbox "github.com/watermill-contrib/watermill-inbox"
)

// LeaseSQL is what a leased message needs of the database outside its completing transaction. Each method commits.
type LeaseSQL interface {
	// Own claims an operation for a queued message that is still leased, without a result: a row that is done, or owned,
	// or neither: busy.
	Own(ctx context.Context, row *QueueRow, token Token, c *OperationClaim) (o Ownership, err error)
	// FindStep reads the result of a step.
	FindStep(ctx context.Context, owner inbox.StorageKey, name string) (result []byte, found bool, err error)
	// PutStep keeps the result of a step, if the lease is still held, and prolongs it; the first result that was kept is
	// the one that stays, and is given back.
	PutStep(ctx context.Context, row *QueueRow, token Token, owner inbox.StorageKey, name string, result []byte) (kept []byte, held bool, err error)
	// Hold prolongs the lease, if it is still held.
	Hold(ctx context.Context, row *QueueRow, token Token) (held bool, err error)
}

// Ownership is the answer to Own.
type Ownership struct {
	Held  bool          // the lease
	Owned bool          // the operation is the message's
	Done  *OperationRow // the operation is done, or the message's with another content
}

// IsBusyOperation tells that a queued message met an operation that somebody else has in hand: it goes back to the queue,
// and the attempt does not count.
func IsBusyOperation(err error) bool {
	var busy *busyOperation
	return errors.As(err, &busy)
}

// completion is an operation whose work was run for a queued message, to be done with it.
type completion struct {
	claim           *OperationClaim
	value, messages []byte
}

// operateLeased is tryOperation for a queued message. While it has no transaction, the operation is claimed by a committed
// statement in the message's name, and busy for everybody else until the message is completed, fails for good, or gives
// it up; a later attempt of the message finds it its own.
func (s *Scope) operateLeased(ctx context.Context, claim *OperationClaim, fn inbox.OperationFunc) (inbox.OperationResult, error) {
	none := inbox.OperationResult{}
	if s.operations.running(claim.Key) {
		return none, fmt.Errorf("%w: the operation is used inside itself", inbox.ErrNested)
	}
	if done, ok := s.operations.completed(claim.Key); ok {
		return s.answerLeased(claim, &OperationRow{
			Fingerprint: done.claim.Fingerprint, Scope: done.claim.Scope, ID: done.claim.ID, Result: done.value, Messages: done.messages,
		})
	}
	if s.leased.Completing() {
		return none, fmt.Errorf("%w: an operation of a queued message begins before TxFromContext", inbox.ErrTxOpen)
	}
	switch own, err := s.leased.sql.Own(ctx, s.leased.row, s.leased.token, claim); {
	case err != nil && s.engine.faultOf(err) == FaultSerialization:
		return none, &busyOperation{claim: claim} // they met over it
	case err != nil:
		return none, s.engine.claimFailed(err)
	case !own.Held:
		return none, inbox.ErrLeaseLost
	case own.Done != nil:
		return s.answerLeased(claim, own.Done)
	case !own.Owned:
		return none, &busyOperation{claim: claim}
	}
	s.leased.operated.Store(true)
	s.operations.begin(claim.Key)
	defer s.operations.end(claim.Key)
	result, err := fn(ctx)
	if err != nil {
		return none, err
	}
	result.Repeated = false
	done := completion{claim: claim, value: result.Value}
	if s.record && len(result.Messages) > 0 {
		done.messages = encodeMessages(result.Messages)
	}
	s.operations.complete(done)
	return result, nil
}

func (s *Scope) answerLeased(claim *OperationClaim, row *OperationRow) (inbox.OperationResult, error) {
	result, err := answerOperation(claim, row)
	if err != nil || !s.record {
		result.Messages = nil
	}
	return result, err
}

func (o *operations) complete(c completion) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.completions = append(o.completions, c)
}

func (o *operations) completed(key inbox.StorageKey) (completion, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, c := range o.completions {
		if c.claim.Key == key {
			return c, true
		}
	}
	return completion{}, false
}

// used tells whether any operation was begun.
func (o *operations) used() ([]completion, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.completions, len(o.states) > 0
}

// completeOperations makes the operations of a queued message done in its completing transaction, and gives up those that
// an earlier attempt began and this one did not.
func (s *Scope) completeOperations(ctx context.Context, tx LeaseTx, row *QueueRow) error {
	completions, used := s.operations.used()
	for _, c := range completions {
		if err := tx.CompleteOperation(ctx, c.claim, row.Key, c.value, c.messages); err != nil {
			return err
		}
		if err := tx.ForgetSteps(ctx, c.claim.Key); err != nil {
			return err
		}
	}
	if !used && row.Attempts <= 1 {
		return nil
	}
	return tx.FreeOperations(ctx, row.Key)
}

var errStepName = errors.New("the name of a step must have 1 to 100 bytes")

// Step is inbox.Lease's Step.
func (l *Lease) Step(ctx context.Context, name string, fn func(ctx context.Context) ([]byte, error)) ([]byte, error) {
	if name == "" || len(name) > 100 {
		return nil, errStepName
	}
	if l.over.Load() {
		return nil, inbox.ErrNotLeased
	}
	if l.Completing() {
		return nil, inbox.ErrTxOpen
	}
	name = EncodeText(name)
	owner := l.row.Key
	l.stepped.Store(true)
	if op, ok := inbox.OperationFromContext(ctx); ok {
		owner = op.Storage()
	}
	result, found, err := l.sql.FindStep(ctx, owner, name)
	if err != nil {
		return nil, l.engine.claimFailed(err)
	}
	if found {
		return result, nil
	}
	if held, err := l.sql.Hold(ctx, l.row, l.token); err != nil || !held {
		return nil, l.notHeld(err)
	}
	if result, err = fn(ctx); err != nil {
		return nil, err
	}
	// What fn did to the world is done: its result must be kept even if the context has ended meanwhile.
	kept, held, err := l.sql.PutStep(context.WithoutCancel(ctx), l.row, l.token, owner, name, result)
	if err != nil || !held {
		return nil, l.notHeld(err)
	}
	return kept, nil
}

func (l *Lease) notHeld(err error) error {
	if err == nil {
		return inbox.ErrLeaseLost
	}
	return l.engine.claimFailed(err)
}
