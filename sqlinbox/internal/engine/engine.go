// Package engine is the algorithm of Process, the same for every driver: claim, call the handler, commit; tell the
// other deliveries apart; wait for copies in flight; run a transaction again after a serialization failure.
package engine

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	inbox "github.com/watermill-contrib/watermill-inbox"
)

// Backend is one way of talking to one kind of database.
type Backend interface {
	// Claim begins a transaction and claims c in it. A Tx in the answer: claimed. A Row: the key is taken, the
	// transaction is rolled back, and this is what a read after that found. Neither: somebody holds the key now.
	// wait bounds the time spent on a database whose claim cannot do without waiting.
	Claim(ctx context.Context, c *Claim, wait time.Duration) (Answer, error)
	// Scheme registers the key scheme of a consumer unless it has one, and gives the one it has. wait is that of Claim.
	Scheme(ctx context.Context, s Scheme, wait time.Duration) (string, error)
	// Fault tells what kind of trouble a database error is.
	Fault(err error) Fault
}

// Answer is what a claim found.
type Answer struct {
	Tx       Tx
	Row      *Row
	Proposal Proposal // beside a Tx: what became of the claim's Operation
}

// Tx is the transaction of a claimed message. Rollback gives the connection back and can always be called, also after
// a failed Commit.
type Tx interface {
	Scope() *Scope
	// Commit keeps the record, if any, and commits.
	Commit(ctx context.Context, record *Record) error
	Rollback(ctx context.Context) error
}

// Engine runs Process for a store.
type Engine struct {
	backend  Backend
	settings Settings
	schemes  sync.Map // consumer → key scheme, once it is known

	flight     flight // of messages
	operations flight
	done       doneKeys
	forgetting forgetting
}

// New gives an engine over backend.
func New(backend Backend, settings Settings) *Engine {
	e := &Engine{backend: backend, settings: settings.resolved()}
	e.done = newDoneKeys(e.settings.DoneKeys, e.settings.DoneTTL)
	e.forgetting.logger = e.settings.Logger
	e.forgetting.backend, _ = backend.(Forgetter)
	return e
}

// ConnectionMet tells that the backend uses a physical connection for the first time. It may lead to another server
// than the last one: what was learnt there is forgotten.
func (e *Engine) ConnectionMet() { e.done.empty() }

// InFlight tells how many messages are at work in this process, and for how long the oldest of them.
func (e *Engine) InFlight() (messages int, oldest time.Duration) {
	n, since := e.flight.inFlight()
	if n == 0 {
		return 0, 0
	}
	return n, time.Since(since)
}

// Process is inbox.Store's Process.
func (e *Engine) Process(ctx context.Context, d inbox.Delivery, fn inbox.Func) (inbox.Result, error) {
	p := &process{Engine: e, d: d, key: d.StorageKey()}
	if scopeFrom(ctx) != nil { // of another store, or an operation's
		return p.result, p.fail(inbox.PhaseClaim, inbox.ErrNested)
	}
	if known, ok := e.done.get(p.key, d.Key); ok {
		return p.answer(known)
	}
	if err := p.enter(ctx); err != nil {
		return p.result, err
	}
	defer e.flight.leave(p.key)
	if known, ok := e.done.get(p.key, d.Key); ok { // the copy in front has handled it
		return p.answer(known)
	}

	p.claim = newClaim(d, p.key, e.settings.LockSpace)
	if d.Operation != nil {
		p.claim.Operation = e.newOperationClaim(*d.Operation)
	}
	for {
		done, err := p.try(ctx, fn)
		if done || err != nil {
			return p.result, err
		}
	}
}

// process is one call of Process.
type process struct {
	*Engine
	d      inbox.Delivery
	key    inbox.StorageKey
	claim  *Claim
	result inbox.Result
	pause  pause
	epoch  uint64 // of the done keys, when the claim began
	busy   bool   // the key was seen in flight elsewhere
	// Faults that are tried once more, on another connection or with another plan; never counted as retries.
	reconnected, replanned bool
	queued                 bool // the message came out of the queue
}

// try is one turn of the loop: not done and no error means to try again.
func (p *process) try(ctx context.Context, fn inbox.Func) (done bool, err error) {
	p.epoch = p.done.epoch.Load()
	known, free, err := p.probe(ctx)
	switch {
	case known != nil:
		if err := p.classify(known); err != nil {
			return false, p.fail(inbox.PhaseClaim, err)
		}
		return true, nil
	case err != nil || !free:
		return false, err
	}
	began := time.Now()
	answer, err := p.begin(ctx, p.settings.InFlightWait-p.result.Wait)
	switch {
	case errors.Is(err, inbox.ErrKeyScheme):
		return false, p.fail(inbox.PhaseClaim, err)
	case err != nil && p.tryClaimAgain(ctx, err):
		return false, nil
	case err != nil && ctx.Err() != nil: // it may never have reached the database
		return false, p.fail(inbox.PhaseClaim, Named(FaultUnavailable, err))
	case err != nil && p.faultOf(err) == FaultBusy:
		p.result.Wait += time.Since(began)
		return false, p.waitTurn(ctx, err)
	case err != nil:
		return false, p.fail(inbox.PhaseClaim, p.claimError(err))
	case answer.Tx != nil:
		if answer.Proposal != NoProposal {
			answer.Tx.Scope().operations.propose(p.claim.Operation, answer.Proposal)
		}
		return p.run(ctx, answer.Tx, fn)
	case answer.Row != nil:
		if busy := !answer.Row.Found && !answer.Row.Late; !busy {
			if err := p.classify(answer.Row); err != nil {
				return false, p.fail(inbox.PhaseClaim, err)
			}
			return true, nil
		}
	}
	return false, p.waitTurn(ctx, nil)
}

// begin claims the message, once its consumer's key scheme is known to be the delivery's.
func (p *process) begin(ctx context.Context, wait time.Duration) (Answer, error) {
	if err := p.checkScheme(ctx, wait); err != nil {
		return Answer{}, err
	}
	return p.backend.Claim(ctx, p.claim, wait)
}

// tryClaimAgain tells whether a failed claim is worth another one. Nothing can have been committed by it.
func (p *process) tryClaimAgain(ctx context.Context, err error) bool {
	if ctx.Err() != nil {
		return false
	}
	switch p.faultOf(err) {
	case FaultSerialization:
		return p.retry(ctx, err)
	case FaultLost: // an idle connection that a restart or a proxy had killed: the pool gives another one
		again := !p.reconnected
		p.reconnected = true
		return again
	case FaultStalePlan: // DDL changed the table under a cached statement
		again := !p.replanned
		p.replanned = true
		return again
	}
	return false
}

// run calls the handler in a claimed transaction and ends it.
//
// The rollback in the defer is for panics and runtime.Goexit: whatever the handler does, the connection goes back.
func (p *process) run(ctx context.Context, tx Tx, fn inbox.Func) (done bool, err error) {
	scope := tx.Scope()
	scope.engine, scope.tx, scope.record = p.Engine, tx, p.d.Record
	ended := false
	defer func() {
		scope.close()
		if !ended {
			_ = p.rollback(ctx, tx)
		}
		scope.release()
	}()

	messages, err := fn(withScope(ctx, scope))
	scope.close()
	if err != nil || scope.doomed() != nil {
		ended = true
		return false, p.handlerFailed(ctx, tx, err, scope.doomed())
	}

	record := p.record(messages)
	if err = p.dropProposal(ctx, scope); err == nil {
		if p.result.OperationRepeated = scope.repeated.Load(); p.result.OperationRepeated {
			record = nil // recorded with the operation
		}
		err = p.commit(ctx, tx, record)
	}
	if err != nil {
		_ = p.rollback(ctx, tx)
	}
	ended = true
	if err != nil {
		return false, p.commitFailed(ctx, err)
	}
	scope.committed()
	if p.claim != nil {
		p.remember(p.d.Fingerprint, record != nil)
	}
	p.result.Outcome, p.result.Messages = inbox.OutcomeProcessed, messages
	p.result.TxUnused = !scope.used.Load() && !p.result.OperationRepeated
	return true, nil
}

// dropProposal deletes the operation that was claimed with the message if the handler did not take it up: nothing may be
// remembered of an operation that was not asked for.
func (p *process) dropProposal(ctx context.Context, scope *Scope) error {
	claim, proposal := scope.operations.unused()
	p.result.ProposalUnused = proposal != NoProposal
	tx, ok := scope.tx.(OperationTx)
	if proposal != ProposalClaimed || !ok {
		return nil
	}
	return tx.Drop(context.WithoutCancel(ctx), claim)
}

// operationDoomed tells whether the whole transaction is to be run again for what an operation met in it, and waits
// before that if the operation is somebody else's now.
func (p *process) operationDoomed(ctx context.Context, doom error) (again bool, err error) {
	var operation *inbox.OperationError
	if !errors.As(doom, &operation) {
		return false, nil
	}
	var busy *busyOperation
	switch {
	case errors.As(doom, &busy) && p.queued:
		return false, nil // the queue lets it wait
	case errors.As(doom, &busy):
		if err := p.waitOperation(ctx, busy.claim); err != nil {
			return false, p.fail(inbox.PhaseHandle, &inbox.OperationError{Scope: operation.Scope, ID: operation.ID, Err: err})
		}
		return true, nil
	case p.backend.Fault(doom) == FaultSerialization:
		return p.retry(ctx, doom), nil
	}
	return false, nil
}

// handlerFailed rolls back and gives the error to return; nil when the transaction is to be run again.
func (p *process) handlerFailed(ctx context.Context, tx Tx, err, doom error) error {
	fault := FaultNone
	if err != nil {
		fault = p.backend.Fault(err)
	}
	rollbackErr := p.rollback(ctx, tx)
	tx.Scope().release() // before any wait: two that hold what the other one waits for would wait for each other
	if fault == FaultLost || rollbackErr != nil {
		p.done.empty()
	}
	if doom == nil && errors.Is(rollbackErr, inbox.ErrTxManaged) {
		doom, rollbackErr = rollbackErr, nil
	}
	if fault == FaultSerialization && doom == nil && p.retry(ctx, err) {
		return nil
	}
	if again, waitErr := p.operationDoomed(ctx, doom); again || waitErr != nil {
		return waitErr
	}
	switch {
	case err == nil && doom != nil: // of an operation whose error the handler hides
		if f := p.backend.Fault(doom); comesAgain(f) {
			doom = Named(f, doom)
		}
	case err == nil:
	case rollbackErr != nil:
		// The handler's error may be anything, but its connection is dead: the message is to stay in the broker.
		err = fmt.Errorf("%w; rollback: %w (%w)", err, rollbackErr, inbox.ErrUnavailable)
	case comesAgain(fault):
		err = Named(fault, err)
	}
	return p.fail(inbox.PhaseHandle, join(err, doom))
}

// comesAgain tells that an error of the handler's statement is the database's doing, not the message's.
func comesAgain(f Fault) bool {
	return f == FaultSerialization || f == FaultLost || f == FaultUnavailable || f == FaultReadOnly
}

// commitFailed gives the error to return; nil when the transaction is to be run again.
func (p *process) commitFailed(ctx context.Context, err error) error {
	if errors.Is(err, inbox.ErrTxManaged) || errors.Is(err, inbox.ErrTxAborted) || errors.Is(err, inbox.ErrTxBusy) {
		return p.fail(inbox.PhaseHandle, err)
	}
	switch f := p.faultOf(err); f {
	case FaultSerialization, FaultBusy:
		if p.retry(ctx, err) {
			return nil
		}
		return p.fail(inbox.PhaseCommit, fmt.Errorf("%w: %w", inbox.ErrSerialization, err))
	case FaultLost:
		// The reply to COMMIT is missing. It may have been done: trying again here could do the work twice.
		return p.fail(inbox.PhaseCommit, fmt.Errorf("%w: %w", inbox.ErrCommitUnknown, err))
	case FaultSchema: // the handler's own table, unless the backend has said otherwise
		return p.fail(inbox.PhaseCommit, err)
	default:
		return p.fail(inbox.PhaseCommit, Named(f, err))
	}
}

// retry tells whether the whole transaction may be run again, and pauses a little first so that two transactions that
// met do not meet again at once.
func (p *process) retry(ctx context.Context, cause error) bool {
	if p.result.TxRetries >= p.settings.TxRetries || ctx.Err() != nil {
		return false
	}
	p.result.TxRetries++
	p.settings.Logger.Debug("Running the transaction again after a serialization failure", watermill.LogFields{
		"consumer": p.d.Key.Consumer, "message_id": p.d.Key.ID, "tx_retry": p.result.TxRetries, "cause": cause.Error(),
	})
	return sleep(ctx, retryPause(p.result.TxRetries)) == nil
}

// commit and rollback are detached from the message's context: if the handler returned nil, its work is committed,
// whatever became of the context by then.
func (p *process) commit(ctx context.Context, tx Tx, record *Record) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.settings.CommitTimeout)
	defer cancel()
	return tx.Commit(ctx, record)
}

func (p *process) rollback(ctx context.Context, tx Tx) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.settings.CommitTimeout)
	defer cancel()
	return tx.Rollback(ctx)
}

func (p *process) fail(phase inbox.Phase, err error) error {
	return &inbox.Error{Phase: phase, Key: p.d.Key, Handler: p.d.Handler, Err: err}
}

// join keeps the handler's own error in front of what doomed its transaction.
func join(err, doom error) error {
	switch {
	case doom == nil || errors.Is(err, doom):
		return err
	case err == nil:
		return doom
	}
	return fmt.Errorf("%w; %w", err, doom)
}
