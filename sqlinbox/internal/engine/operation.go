package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	inbox "github.com/watermill-contrib/watermill-inbox"
)

// Operator is a Backend with a memory of operations.
type Operator interface {
	// ClaimOperation begins a transaction and claims c in it. A Tx: claimed. A row: the operation is done. Neither:
	// somebody holds it now. wait is that of Backend's Claim.
	ClaimOperation(ctx context.Context, c *OperationClaim, wait time.Duration) (Tx, *OperationRow, error)
	// ProbeOperation tells, for one statement outside any transaction, whether another claim is worth while.
	ProbeOperation(ctx context.Context, c *OperationClaim) (free bool, err error)
}

// OperationTx is a Tx in which operations can be claimed. None of its methods waits for another transaction.
type OperationTx interface {
	Tx
	// Claim claims the operation in this transaction, or tells that it is taken.
	Claim(ctx context.Context, c *OperationClaim) (bool, error)
	// Read gives the row of an operation that is taken; nil: somebody holds it now.
	Read(ctx context.Context, c *OperationClaim) (*OperationRow, error)
	// Keep writes the result of an operation that was claimed in this transaction, at COMMIT at the latest.
	Keep(ctx context.Context, c *OperationClaim, result, messages []byte) error
	// Drop deletes an operation that was claimed in this transaction, unless the row has another fingerprint by now.
	Drop(ctx context.Context, c *OperationClaim) error
}

// OperationClaim is an operation in the form in which it is stored.
type OperationClaim struct {
	Key         inbox.StorageKey
	Fingerprint inbox.Fingerprint
	Scope, ID   string // as readable text, see EncodeText
	LockID      int64  // of the advisory lock
}

// OperationRow is a row of the memory of operations. One that can be read is done.
type OperationRow struct {
	Fingerprint inbox.Fingerprint
	Scope, ID   string
	Result      []byte
	Messages    []byte
}

// Proposal is what became of the operation that was claimed together with its message.
type Proposal int

// A proposal was not made, won, or lost to somebody else.
const (
	NoProposal Proposal = iota
	ProposalClaimed
	ProposalTaken
)

func (e *Engine) newOperationClaim(op inbox.Operation) *OperationClaim {
	key := op.Storage()
	return &OperationClaim{
		Key:         key,
		Fingerprint: op.Fingerprint,
		Scope:       EncodeText(op.Scope),
		ID:          EncodeText(op.ID),
		LockID:      e.settings.OperationLockSpace.ID(key),
	}
}

// Operate is inbox.OperationStore's Operate.
func (e *Engine) Operate(ctx context.Context, op inbox.Operation, fn inbox.OperationFunc) (result inbox.OperationResult, err error) {
	s := scopeFrom(ctx)
	switch {
	case s == nil:
		result, err = e.operateAlone(ctx, op, fn)
	case s.engine != e:
		err = inbox.ErrNested
	default:
		result, err = s.operate(ctx, op, fn)
	}
	if err != nil {
		err = ofOperation(op, err)
	}
	return result, err
}

// ofOperation puts the operation's name on an error, unless it is there.
func ofOperation(op inbox.Operation, err error) error {
	var named *inbox.OperationError
	if errors.As(err, &named) && named.Scope == op.Scope && named.ID == op.ID {
		return err
	}
	return &inbox.OperationError{Scope: op.Scope, ID: op.ID, Err: err}
}

// errOperationPanicked dooms a transaction whose operation was left by a panic or runtime.Goexit.
var errOperationPanicked = errors.New("the work of an operation panicked")

// operate claims op in the transaction of the scope and runs fn. Whatever fails in here, the transaction must not be
// committed: half of the operation may be done. So it is doomed, for a handler that swallows the error or recovers.
func (s *Scope) operate(ctx context.Context, op inbox.Operation, fn inbox.OperationFunc) (result inbox.OperationResult, err error) {
	if doom := s.doomed(); doom != nil {
		return result, doom
	}
	failure := ofOperation(op, errOperationPanicked)
	defer func() {
		if failure != nil {
			s.Doom(failure)
		}
	}()
	result, err = s.tryOperation(ctx, op, func(ctx context.Context) (inbox.OperationResult, error) {
		return fn(inbox.WithOperation(ctx, op))
	})
	if err != nil {
		failure = ofOperation(op, err)
		return inbox.OperationResult{}, failure
	}
	failure = nil
	if op.Whole && result.Repeated {
		s.repeated.Store(true)
	}
	return result, nil
}

func (s *Scope) tryOperation(ctx context.Context, op inbox.Operation, fn inbox.OperationFunc) (inbox.OperationResult, error) {
	none := inbox.OperationResult{}
	if err := op.Validate(); err != nil {
		return none, err
	}
	claim := s.engine.newOperationClaim(op)
	if s.leased != nil {
		return s.operateLeased(ctx, claim, fn)
	}
	tx, ok := s.tx.(OperationTx)
	if !ok {
		return none, errNoOperations
	}
	if s.operations.running(claim.Key) {
		return none, fmt.Errorf("%w: the operation is used inside itself", inbox.ErrNested)
	}
	claimed, err := s.claimOperation(ctx, tx, claim)
	if err != nil {
		return none, err
	}
	if !claimed {
		row, err := tx.Read(ctx, claim)
		switch {
		case err != nil:
			return none, s.engine.claimFailed(err)
		case row == nil:
			return none, &busyOperation{claim: claim}
		case !s.isProposal(claim, row):
			return s.repeat(claim, row)
		}
		// The proposal stands in the way of an operation with other content, which is the one that was asked for.
		if err := tx.Drop(ctx, s.operations.proposed); err != nil {
			return none, s.engine.claimFailed(err)
		}
		if claimed, err = tx.Claim(ctx, claim); err != nil || !claimed {
			return none, s.engine.claimFailed(join(err, errProposalStands))
		}
	}
	s.hold(ctx, claim)
	return s.work(ctx, tx, claim, fn)
}

var errNoOperations = errors.New("this store has no memory of operations")

var errProposalStands = errors.New("the proposal of Config.Claims could not be put aside for an operation with other content")

// claimOperation takes up the proposal that was claimed with the message, or claims. It tells whether the operation is
// this transaction's now.
func (s *Scope) claimOperation(ctx context.Context, tx OperationTx, claim *OperationClaim) (bool, error) {
	if proposal := s.takeProposal(claim); proposal != NoProposal {
		return proposal == ProposalClaimed, nil
	}
	claimed, err := tx.Claim(ctx, claim)
	if err != nil {
		return false, s.engine.claimFailed(err)
	}
	return claimed, nil
}

// claimFailed names what went wrong with an operation's claim, which is never the message's fault.
func (e *Engine) claimFailed(err error) error {
	f := e.faultOf(err)
	if f == FaultOther {
		f = FaultUnavailable
	}
	return Named(f, err)
}

// work runs fn for a claimed operation and keeps what it gives.
func (s *Scope) work(ctx context.Context, tx OperationTx, claim *OperationClaim, fn inbox.OperationFunc) (inbox.OperationResult, error) {
	s.operations.begin(claim.Key)
	defer s.operations.end(claim.Key)
	result, err := fn(ctx)
	if err != nil {
		return inbox.OperationResult{}, err
	}
	result.Repeated = false
	var messages []byte
	if s.record && len(result.Messages) > 0 {
		messages = encodeMessages(result.Messages)
	}
	value := bytes.Clone(result.Value) // it may travel with COMMIT, and the handler goes on with its own
	s.operations.keep(claim.Key, value, messages)
	if len(value) == 0 && messages == nil {
		return result, nil
	}
	return result, tx.Keep(ctx, claim, value, messages)
}

// repeat is the result of an operation that was done before, by another message or earlier in this transaction.
func (s *Scope) repeat(claim *OperationClaim, row *OperationRow) (inbox.OperationResult, error) {
	// What Keep wrote may still be on its way. A row that has something is another one's, which came in after a savepoint
	// had undone this transaction's.
	if value, messages, own := s.operations.kept(claim.Key); own && row.Result == nil && row.Messages == nil {
		row.Result, row.Messages = bytes.Clone(value), messages
	}
	result, err := answerOperation(claim, row)
	if err != nil || !s.record {
		result.Messages = nil
	}
	return result, err
}

// answerOperation compares a row with the operation that was asked for.
func answerOperation(claim *OperationClaim, row *OperationRow) (inbox.OperationResult, error) {
	none := inbox.OperationResult{}
	if row.Scope != claim.Scope || row.ID != claim.ID {
		return none, fmt.Errorf("%w: %s holds operation %s/%s", inbox.ErrKeyCollision, claim.Key, row.Scope, row.ID)
	}
	if row.Fingerprint != claim.Fingerprint {
		return none, fmt.Errorf("%w: fingerprint %x, remembered %x", inbox.ErrMismatch, claim.Fingerprint, row.Fingerprint)
	}
	var messages []*message.Message
	if len(row.Messages) > 0 {
		var err error
		if messages, err = decodeMessages(row.Messages); err != nil {
			return none, err
		}
	}
	return inbox.OperationResult{Value: row.Result, Messages: messages, Repeated: true}, nil
}

// busyOperation is an operation that somebody else has in hand. It dooms the transaction; the delivery starts again when
// the operation may be free.
type busyOperation struct{ claim *OperationClaim }

func (b *busyOperation) Error() string {
	return "another message or call has this operation in hand: " + inbox.ErrInFlight.Error()
}

func (b *busyOperation) Unwrap() error { return inbox.ErrInFlight }

// operateAlone runs op in a transaction of its own.
func (e *Engine) operateAlone(ctx context.Context, op inbox.Operation, fn inbox.OperationFunc) (inbox.OperationResult, error) {
	if err := op.Validate(); err != nil {
		return inbox.OperationResult{}, err
	}
	backend, ok := e.backend.(Operator)
	if !ok {
		return inbox.OperationResult{}, errNoOperations
	}
	a := &alone{
		process:  process{Engine: e, d: inbox.Delivery{Key: inbox.Key{Consumer: op.Scope, ID: op.ID}, Record: true}},
		backend:  backend,
		claim:    e.newOperationClaim(op),
		fn:       fn,
		operated: inbox.OperationResult{},
	}
	for {
		done, err := a.try(ctx)
		if err != nil {
			return inbox.OperationResult{}, err
		}
		if done {
			return a.operated, nil
		}
	}
}

// alone is an operation outside any message.
type alone struct {
	process
	backend  Operator
	claim    *OperationClaim
	fn       inbox.OperationFunc
	operated inbox.OperationResult
}

func (a *alone) try(ctx context.Context) (done bool, err error) {
	began := time.Now()
	tx, row, err := a.backend.ClaimOperation(ctx, a.claim, a.settings.InFlightWait-a.result.Wait)
	switch {
	case err != nil && a.tryClaimAgain(ctx, err):
		return false, nil
	case err != nil && a.faultOf(err) == FaultBusy:
		a.result.Wait += time.Since(began)
		return false, a.bare(a.waitTurn(ctx, err))
	case err != nil:
		return false, a.claimError(err)
	case tx != nil:
		done, err = a.run(ctx, tx, a.work)
		return done, a.bare(err)
	case row != nil:
		a.operated, err = answerOperation(a.claim, row)
		return err == nil, err
	}
	return false, a.waitOperation(ctx, a.claim)
}

// work is the Func of the transaction.
func (a *alone) work(ctx context.Context) (_ []*message.Message, err error) {
	s := scopeFrom(ctx)
	tx, ok := s.tx.(OperationTx)
	if !ok {
		return nil, errNoOperations
	}
	s.hold(ctx, a.claim)
	a.operated, err = s.work(ctx, tx, a.claim, a.fn)
	return nil, err
}

// bare takes the message's name off an error: there is no message.
func (a *alone) bare(err error) error {
	var named *inbox.Error
	if errors.As(err, &named) {
		return named.Err
	}
	return err
}

// waitOperation waits until an operation that somebody else has in hand may be free; no connection is held meanwhile.
//
// Its holder may be in this process: then its end is waited for, in a line. This place in the line is given up at once,
// since the operation is claimed only after the message, which may take turns with another one that waits here.
func (p *process) waitOperation(ctx context.Context, c *OperationClaim) error {
	waited, err := p.operations.enter(ctx, c.Key, p.settings.InFlightWait-p.result.Wait)
	p.result.Wait += waited
	switch {
	case err == nil:
		p.operations.leave(c.Key)
	case errors.Is(err, errWaited):
		return p.operationInFlight()
	default:
		return fmt.Errorf("%w: %w", inbox.ErrInFlight, err)
	}
	for waited == 0 {
		left := p.settings.InFlightWait - p.result.Wait
		if left <= 0 {
			return p.operationInFlight()
		}
		began := time.Now()
		err := sleep(ctx, min(p.pause.next(), left))
		p.result.Wait += time.Since(began)
		if err != nil {
			return fmt.Errorf("%w: %w", inbox.ErrInFlight, err)
		}
		if p.operationFree(ctx, c) {
			break
		}
	}
	return nil
}

// operationFree asks whether another claim is worth while; an error is no answer, the claim will tell.
func (p *process) operationFree(ctx context.Context, c *OperationClaim) bool {
	backend, can := p.backend.(Operator)
	if !can {
		return true
	}
	free, err := backend.ProbeOperation(ctx, c)
	return free || err != nil
}

func (p *process) operationInFlight() error {
	return fmt.Errorf("%w: waited %v for the operation (InFlightWait is %v)",
		inbox.ErrInFlight, p.result.Wait.Round(time.Millisecond), p.settings.InFlightWait)
}
