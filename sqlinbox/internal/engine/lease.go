package engine

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	inbox "github.com/watermill-contrib/watermill-inbox"
)

// The states of a queue row.
const (
	StateWaiting    = 0 // to be handled
	StatePublishing = 1 // handled; what its handler returned is not proved to be published
	StateDead       = 2 // given up until an operator decides
)

// QueueRow is a row of the queue that was leased, with its memory row.
type QueueRow struct {
	Seq        int64
	Key        inbox.StorageKey
	ConsumerID inbox.StorageKey
	Lane       int64 // 0: no order
	State      int
	Attempts   int // starts, this one included
	Unfinished int // starts in a row, this one included, that had no end
	Message    []byte
	LeaseTime  time.Duration

	Fingerprint inbox.Fingerprint
	Consumer    string // as readable text, see EncodeText
	Source      string
	MessageID   string
	Topic       string
	RecordedBy  string
	Recorded    []byte
}

// Token is the fence of a lease: whoever does not have the row's present one has lost it.
type Token = inbox.StorageKey

// LeaseBackend ends leases.
type LeaseBackend interface {
	// BeginLeased begins a transaction and ends the lease in it, if the row still has the token. Nil: the lease is lost.
	BeginLeased(ctx context.Context, row *QueueRow, token Token, end End) (LeaseTx, error)
}

// End is how a lease ends.
type End int

// The row is taken out of the queue, or turned into a publishing one, and the memory row becomes processed; or the row is
// dead.
const (
	EndTake End = iota
	EndPublish
	EndBury
)

// LeaseTx is the transaction that completes a leased message.
type LeaseTx interface {
	Tx
	// Delete takes the publishing row out of the queue: there is nothing to publish.
	Delete(ctx context.Context, row *QueueRow) error
	// Promote makes the next row of the lane ready, after the row was deleted in this transaction. False: it cannot at this
	// transaction's isolation level; then it is to be done after the commit.
	Promote(ctx context.Context, row *QueueRow) (bool, error)
	// Because writes why the row is dead.
	Because(ctx context.Context, row *QueueRow, cause string) error
	// CompleteOperation makes an operation of the owner done; FreeOperations gives up those that are not.
	CompleteOperation(ctx context.Context, c *OperationClaim, owner inbox.StorageKey, value, messages []byte) error
	FreeOperations(ctx context.Context, owner inbox.StorageKey) error
	// ForgetSteps deletes what the steps of a message, or of an operation, gave.
	ForgetSteps(ctx context.Context, owner inbox.StorageKey) error
}

// Lease is a leased message; it is inbox.Lease for the middleware.
type Lease struct {
	engine  *Engine
	owner   inbox.Store
	backend LeaseBackend
	sql     LeaseSQL
	row     *QueueRow
	token   Token
	msg     *message.Message

	operated, stepped atomic.Bool  // an operation was claimed, a step used
	over              atomic.Bool  // its message is out of hand
	work              sync.RWMutex // held while Process runs

	mu    sync.Mutex
	state LeaseState
	err   error
	// completing is set while the transaction that ends the lease is open.
	completing bool
	unpromoted bool
}

// LeaseState is how far the work on a leased message has come.
type LeaseState int

// A lease that nobody worked on, one whose work failed, one whose row is publishing, one whose row is gone, one that is
// lost.
const (
	LeaseUntouched LeaseState = iota
	LeaseFailed
	LeasePublishing
	LeaseDone
	LeaseLost
)

// NewLease gives the lease of a row of owner's queue, and its message.
func (e *Engine) NewLease(owner inbox.Store, sql LeaseSQL, row *QueueRow, token Token, leaseTime time.Duration) (*Lease, *message.Message, error) {
	messages, err := decodeMessages(row.Message)
	if err != nil || len(messages) != 1 {
		return nil, nil, fmt.Errorf("queue row %d: %w", row.Seq, errRecord)
	}
	backend, ok := e.backend.(LeaseBackend)
	if !ok {
		return nil, nil, inbox.ErrNoQueue
	}
	row.LeaseTime = leaseTime
	l := &Lease{engine: e, owner: owner, sql: sql, backend: backend, row: row, token: token, msg: messages[0]}
	if row.State == StatePublishing {
		l.state = LeasePublishing
	}
	return l, l.msg, nil
}

// EncodeMessage writes a message for the queue.
func EncodeMessage(msg *message.Message) []byte { return encodeMessages([]*message.Message{msg}) }

// Message is the one that was stored, as it is now.
func (l *Lease) Message() *message.Message { return l.msg }

// End waits for a Process that is still running, whose message was acked before, and lets no later one begin.
func (l *Lease) End() {
	l.work.Lock()
	defer l.work.Unlock()
	l.over.Store(true)
}

// Row is the row that was leased.
func (l *Lease) Row() *QueueRow { return l.row }

// Token is the lease's.
func (l *Lease) Token() Token { return l.token }

// State tells how far the work has come, and why it failed.
func (l *Lease) State() (LeaseState, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state, l.err
}

func (l *Lease) set(state LeaseState, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.state, l.err = state, err
}

// Of is inbox.Lease's Of.
func (l *Lease) Of(store inbox.Store) bool { return store == l.owner }

// Delivery is inbox.Lease's Delivery.
func (l *Lease) Delivery() inbox.Delivery {
	return inbox.Delivery{
		Key: inbox.Key{
			Consumer: DecodeText(l.row.Consumer), Source: DecodeText(l.row.Source), ID: DecodeText(l.row.MessageID),
		},
		Topic:       DecodeText(l.row.Topic),
		Fingerprint: l.row.Fingerprint,
		Attempt:     l.row.Attempts,
	}
}

// Process is inbox.Store's Process, once for a lease.
func (l *Lease) Process(ctx context.Context, d inbox.Delivery, fn inbox.Func) (inbox.Result, error) {
	l.work.RLock()
	defer l.work.RUnlock()
	p := &process{Engine: l.engine, d: d, key: l.row.Key, queued: true}
	if scopeFrom(ctx) != nil {
		return p.result, p.fail(inbox.PhaseClaim, inbox.ErrNested)
	}
	switch state, err := l.State(); state {
	case LeasePublishing: // handled by an earlier attempt: only what it returned is still to be published
		p.result.Outcome = inbox.OutcomeDuplicate
		if err := p.replay(&Row{RecordedBy: l.row.RecordedBy, Recorded: l.row.Recorded}); err != nil {
			return p.result, p.fail(inbox.PhaseClaim, err)
		}
		return p.result, nil
	case LeaseDone:
		p.result.Outcome = inbox.OutcomeDuplicate
		return p.result, nil
	case LeaseLost:
		return p.result, p.fail(inbox.PhaseClaim, err)
	}
	end := EndTake
	if d.Record && message.PublishTopicFromCtx(ctx) != "" {
		end = EndPublish
	}
	returned := false
	defer func() {
		if !returned { // a panic or runtime.Goexit: an ack after it must not complete the message
			l.fail(errPanicked)
		}
	}()
	for {
		returned = false
		done, err := p.runLeased(ctx, l, end, fn)
		returned = true
		if err != nil {
			l.fail(err)
			return p.result, err
		}
		if done {
			return p.result, nil
		}
	}
}

var errPanicked = errors.New("the handler panicked")

func (l *Lease) fail(err error) {
	if errors.Is(err, inbox.ErrLeaseLost) {
		l.set(LeaseLost, err)
		return
	}
	l.set(LeaseFailed, err)
}

// runLeased calls the handler without a transaction. It gets one when it first asks for it, and with it the end of the
// lease: from there on the row's lock is the lease.
func (p *process) runLeased(ctx context.Context, l *Lease, end End, fn inbox.Func) (done bool, err error) {
	scope := &Scope{engine: p.Engine, record: p.d.Record, leased: l}
	lazy := &lazyTx{begin: func(ctx context.Context) (LeaseTx, error) {
		l.complete(true)
		tx, err := l.backend.BeginLeased(context.WithoutCancel(ctx), l.row, l.token, end)
		for err != nil && p.tryClaimAgain(ctx, err) { // nothing but the fence was tried
			tx, err = l.backend.BeginLeased(context.WithoutCancel(ctx), l.row, l.token, end)
		}
		if err == nil && tx == nil {
			err = inbox.ErrLeaseLost
		}
		return tx, err
	}}
	scope.begin = func(ctx context.Context) (LeaseTx, error) {
		tx, err := lazy.get(ctx)
		if err != nil {
			scope.Doom(err)
		}
		return tx, err
	}
	ended := false
	defer l.complete(false)
	defer func() {
		scope.close()
		if tx := lazy.begun(); tx != nil && !ended {
			_ = p.rollback(ctx, tx)
		}
	}()

	messages, err := fn(withScope(ctx, scope))
	scope.close()
	doom := scope.doomed()
	tx := lazy.begun()
	if tx != nil {
		tx.Scope().close()
		if d := tx.Scope().doomed(); d != nil && doom == nil {
			doom = d
		}
	}
	if err != nil || doom != nil {
		ended = true
		if tx == nil {
			return false, p.fail(inbox.PhaseHandle, join(err, doom))
		}
		return false, p.handlerFailed(ctx, tx, err, doom)
	}
	if tx == nil {
		if tx, err = lazy.get(ctx); err != nil {
			ended = true
			return false, p.fail(inbox.PhaseCommit, p.completionError(err))
		}
	}
	record := p.record(messages)
	publishing := end == EndPublish && len(messages) > 0 && !scope.repeated.Load()
	if err = p.complete(context.WithoutCancel(ctx), l, scope, tx, end, publishing); err == nil {
		if p.result.OperationRepeated = scope.repeated.Load(); p.result.OperationRepeated {
			record = nil // recorded with the operation
		}
		err = p.commit(ctx, tx, record)
	}
	ended = true
	if err != nil {
		_ = p.rollback(ctx, tx)
		return false, p.commitFailed(ctx, err)
	}
	scope.committed()
	l.set(LeaseDone, nil)
	if publishing {
		if record != nil { // for a Retry around the inbox that comes back with this lease
			l.row.RecordedBy, l.row.Recorded = record.Handler, record.Messages
		}
		l.set(LeasePublishing, nil)
	}
	p.result.Outcome, p.result.Messages = inbox.OutcomeProcessed, messages
	return true, nil
}

// complete does what the end of a queued message asks for beside the handler's work.
func (p *process) complete(ctx context.Context, l *Lease, scope *Scope, tx LeaseTx, end End, publishing bool) error {
	if err := scope.completeOperations(ctx, tx, l.row); err != nil {
		return err
	}
	if l.stepped.Load() || l.row.Attempts > 1 {
		if err := tx.ForgetSteps(ctx, l.row.Key); err != nil {
			return err
		}
	}
	if publishing {
		return nil
	}
	if end == EndPublish {
		if err := tx.Delete(ctx, l.row); err != nil {
			return err
		}
	}
	if l.row.Lane == 0 {
		return nil
	}
	promoted, err := tx.Promote(ctx, l.row)
	l.mu.Lock()
	l.unpromoted = !promoted
	l.mu.Unlock()
	return err
}

// Operated tells that an operation was claimed in the message's name.
func (l *Lease) Operated() bool { return l.operated.Load() }

// Unpromoted tells that the next row of the lane is still to be made ready.
func (l *Lease) Unpromoted() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.unpromoted
}

// Bury marks the message as dead, in a transaction that onDead can take part in; its error, or a lost lease, leaves the
// row as it was.
func (l *Lease) Bury(ctx context.Context, cause string, onDead func(ctx context.Context) error) error {
	p := &process{Engine: l.engine, d: l.Delivery(), key: l.row.Key}
	tx, err := l.backend.BeginLeased(ctx, l.row, l.token, EndBury)
	if err != nil || tx == nil {
		return l.notHeld(err)
	}
	scope := tx.Scope()
	scope.engine, scope.tx = l.engine, tx
	ended := false
	defer func() {
		scope.close()
		if !ended {
			_ = p.rollback(ctx, tx)
		}
		scope.release()
	}()
	if err := tx.Because(ctx, l.row, cause); err != nil {
		return err
	}
	if err := tx.FreeOperations(ctx, l.row.Key); err != nil {
		return err
	}
	if onDead != nil {
		err = onDead(withScope(ctx, scope))
	}
	if doom := scope.doomed(); err == nil {
		err = doom
	}
	scope.close()
	if err == nil {
		err = p.commit(ctx, tx, nil)
	}
	ended = true
	if err != nil {
		_ = p.rollback(ctx, tx)
		return err
	}
	scope.committed()
	return nil
}

func (p *process) completionError(err error) error {
	if errors.Is(err, inbox.ErrLeaseLost) {
		return err
	}
	return p.claimError(err)
}

// lazyTx is a transaction that begins when it is first asked for.
type lazyTx struct {
	begin func(ctx context.Context) (LeaseTx, error)

	mu  sync.Mutex
	tx  LeaseTx
	err error
}

func (l *lazyTx) get(ctx context.Context) (LeaseTx, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.tx == nil && l.err == nil {
		l.tx, l.err = l.begin(ctx)
	}
	return l.tx, l.err
}

func (l *lazyTx) begun() LeaseTx {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.tx
}
