package engine_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox/internal/engine"
)

// fakeOperations is a backend whose messages are all new, with a memory of operations.
type fakeOperations struct {
	*fakeBackend
	claimErr error // of the next claim of an operation
	probes   int
	keeps    int

	rows map[inbox.StorageKey]*engine.OperationRow
	held map[inbox.StorageKey]*heldOperation
}

type heldOperation struct {
	tx  *opTx
	row *engine.OperationRow
}

func newFakeOperations() *fakeOperations {
	return &fakeOperations{
		fakeBackend: newFakeBackend(),
		rows:        map[inbox.StorageKey]*engine.OperationRow{}, held: map[inbox.StorageKey]*heldOperation{},
	}
}

func (b *fakeOperations) begin() *opTx {
	b.mu.Lock()
	defer b.mu.Unlock()
	tx := &opTx{fakeTx: &fakeTx{backend: b.fakeBackend, scope: &engine.Scope{Handle: &handle{len(b.txs) + 1}}}, operations: b}
	b.txs = append(b.txs, tx.fakeTx)
	return tx
}

func (b *fakeOperations) Claim(ctx context.Context, c *engine.Claim, _ time.Duration) (engine.Answer, error) {
	answer := engine.Answer{Tx: b.begin()}
	if c.Operation != nil {
		answer.Proposal = engine.ProposalTaken
		if claimed, _ := answer.Tx.(*opTx).Claim(ctx, c.Operation); claimed {
			answer.Proposal = engine.ProposalClaimed
		}
	}
	return answer, nil
}

func (b *fakeOperations) ClaimOperation(ctx context.Context, c *engine.OperationClaim, _ time.Duration) (engine.Tx, *engine.OperationRow, error) {
	tx := b.begin()
	claimed, err := tx.Claim(ctx, c)
	if err == nil && claimed {
		return tx, nil, nil
	}
	row, _ := tx.Read(ctx, c)
	_ = tx.Rollback(ctx)
	return nil, row, err
}

func (b *fakeOperations) ProbeOperation(_ context.Context, c *engine.OperationClaim) (bool, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.probes++
	return b.held[c.Key] == nil, nil
}

type opTx struct {
	*fakeTx
	operations *fakeOperations
}

func (t *opTx) Claim(_ context.Context, c *engine.OperationClaim) (bool, error) {
	b := t.operations
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.claimErr; err != nil {
		b.claimErr = nil
		return false, err
	}
	if b.rows[c.Key] != nil || b.held[c.Key] != nil {
		return false, nil
	}
	b.held[c.Key] = &heldOperation{t, &engine.OperationRow{Fingerprint: c.Fingerprint, Scope: c.Scope, ID: c.ID}}
	return true, nil
}

func (t *opTx) Read(_ context.Context, c *engine.OperationClaim) (*engine.OperationRow, error) {
	b := t.operations
	b.mu.Lock()
	defer b.mu.Unlock()
	row := b.rows[c.Key]
	if held := b.held[c.Key]; held != nil && held.tx == t {
		row = &engine.OperationRow{Fingerprint: held.row.Fingerprint, Scope: held.row.Scope, ID: held.row.ID} // the result is on its way
	}
	if row == nil {
		return nil, nil //nolint:nilnil // nothing is there
	}
	read := *row
	return &read, nil
}

func (t *opTx) Keep(_ context.Context, c *engine.OperationClaim, result, messages []byte) error {
	b := t.operations
	b.mu.Lock()
	defer b.mu.Unlock()
	b.keeps++
	b.held[c.Key].row.Result, b.held[c.Key].row.Messages = result, messages
	return nil
}

func (t *opTx) Drop(_ context.Context, c *engine.OperationClaim) error {
	b := t.operations
	b.mu.Lock()
	defer b.mu.Unlock()
	t.ends = append(t.ends, "drop")
	if held := b.held[c.Key]; held != nil && held.tx == t && held.row.Fingerprint == c.Fingerprint {
		delete(b.held, c.Key)
	}
	return nil
}

func (t *opTx) Commit(ctx context.Context, record *engine.Record) error {
	err := t.fakeTx.Commit(ctx, record)
	if err == nil {
		t.settle(true)
	}
	return err
}

func (t *opTx) Rollback(ctx context.Context) error {
	t.settle(false)
	return t.fakeTx.Rollback(ctx)
}

func (t *opTx) settle(keep bool) {
	b := t.operations
	b.mu.Lock()
	defer b.mu.Unlock()
	for key, held := range b.held {
		if held.tx != t {
			continue
		}
		delete(b.held, key)
		if keep {
			b.rows[key] = held.row
		}
	}
}

// another is a delivery of a message of its own.
func another(id string) inbox.Delivery {
	d := delivery
	d.Key.ID, d.Record = id, true
	return d
}

func pay(id string) inbox.Operation { return inbox.Operation{Scope: "charge", ID: id} }

// gives is the work of an operation that has a result.
func gives(value string) inbox.OperationFunc {
	return func(context.Context) (inbox.OperationResult, error) {
		return inbox.OperationResult{Value: []byte(value)}, nil
	}
}

func fails(err error) inbox.OperationFunc {
	return func(context.Context) (inbox.OperationResult, error) { return inbox.OperationResult{}, err }
}

func notRun(t *testing.T) inbox.OperationFunc {
	return func(context.Context) (inbox.OperationResult, error) {
		t.Error("the work of the operation was run")
		return inbox.OperationResult{}, nil
	}
}

// operating is a handler that does one operation.
func operating(e *engine.Engine, op inbox.Operation, fn inbox.OperationFunc) inbox.Func {
	return func(ctx context.Context) ([]*message.Message, error) {
		result, err := e.Operate(ctx, op, fn)
		return result.Messages, err
	}
}

func TestOperationIsDoneOnce(t *testing.T) {
	t.Parallel()
	backend := newFakeOperations()
	e := engine.New(backend, engine.Settings{})
	whole := pay("1")
	whole.Whole = true
	produced := []*message.Message{message.NewMessage("out", message.Payload("receipt"))}
	first, err := e.Process(t.Context(), another("1"), operating(e, whole, func(context.Context) (inbox.OperationResult, error) {
		return inbox.OperationResult{Messages: produced, Repeated: true}, nil // what the work says of that does not count
	}))
	require.NoError(t, err)
	require.False(t, first.OperationRepeated)
	require.Equal(t, produced, first.Messages)
	require.NotNil(t, backend.txs[0].record)

	second, err := e.Process(t.Context(), another("2"), operating(e, whole, notRun(t)))
	require.NoError(t, err)
	require.True(t, second.OperationRepeated)
	require.False(t, second.TxUnused)
	require.Len(t, second.Messages, 1)
	require.Equal(t, "out", second.Messages[0].UUID)
	require.Nil(t, backend.txs[1].record, "recorded with the operation")

	part, err := e.Process(t.Context(), another("3"), operating(e, pay("1"), notRun(t)))
	require.NoError(t, err)
	require.False(t, part.OperationRepeated, "the message may ask for more")

	outbox := another("4")
	outbox.Record = false
	sent, err := e.Process(t.Context(), outbox, operating(e, whole, notRun(t)))
	require.NoError(t, err)
	require.Empty(t, sent.Messages)
	require.Equal(t, 1, backend.keeps)
	require.Zero(t, backend.open())
}

func TestOperationWithoutAResultIsNotWrittenTwice(t *testing.T) {
	t.Parallel()
	backend := newFakeOperations()
	e := engine.New(backend, engine.Settings{})
	for id, work := range map[string]inbox.OperationFunc{"1": gives(""), "2": fails(nil)} {
		_, err := e.Process(t.Context(), another(id), operating(e, pay(id), work))
		require.NoError(t, err)
	}
	require.Zero(t, backend.keeps)
	require.Len(t, backend.rows, 2)
}

func TestOperationTwiceInOneTransaction(t *testing.T) {
	t.Parallel()
	backend := newFakeOperations()
	e := engine.New(backend, engine.Settings{})
	_, err := e.Process(t.Context(), another("1"), func(ctx context.Context) ([]*message.Message, error) {
		for _, work := range []inbox.OperationFunc{gives("receipt"), notRun(t)} {
			result, err := e.Operate(ctx, pay("1"), work)
			require.NoError(t, err)
			require.Equal(t, "receipt", string(result.Value), "also while it is on its way to the database")
		}
		return nil, nil
	})
	require.NoError(t, err)
}

// Two handlers, each of which holds what the other one wants next. Neither may wait for the other to give up.
func TestOperationsInOppositeOrders(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		backend := newFakeOperations()
		e := engine.New(backend, engine.Settings{})
		var both, over sync.WaitGroup
		both.Add(2)
		began := time.Now()
		for n, order := range [][2]string{{"X", "Y"}, {"Y", "X"}} {
			first := true
			over.Go(func() {
				result, err := e.Process(t.Context(), another(fmt.Sprint(n)), func(ctx context.Context) ([]*message.Message, error) {
					if _, err := e.Operate(ctx, pay(order[0]), gives("")); err != nil {
						return nil, err
					}
					if first {
						first = false
						both.Done()
						both.Wait()
					}
					_, err := e.Operate(ctx, pay(order[1]), gives(""))
					return nil, err
				})
				require.NoError(t, err)
				require.Zero(t, result.TxRetries, "waiting is no serialization failure")
			})
		}
		over.Wait()
		require.Less(t, time.Since(began), time.Second, "they waited for each other")
		require.Len(t, backend.rows, 2)
		require.Zero(t, backend.open())
	})
}

// holdOperation has e hold operation 1 outside any message until end is closed.
func holdOperation(t *testing.T, e *engine.Engine, end chan error) {
	t.Helper()
	go func() {
		_, _ = e.Operate(context.Background(), pay("1"), func(context.Context) (inbox.OperationResult, error) {
			return inbox.OperationResult{Value: []byte("receipt")}, <-end
		})
	}()
	synctest.Wait()
}

func TestBusyOperationIsWaitedForWithoutATransaction(t *testing.T) {
	t.Parallel()
	for name, elsewhere := range map[string]bool{"in this process": false, "elsewhere": true} {
		for _, failure := range []error{nil, errors.New("declined")} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					backend := newFakeOperations()
					e := engine.New(backend, engine.Settings{})
					holder := e
					if elsewhere {
						holder = engine.New(backend, engine.Settings{})
					}
					end := make(chan error, 1)
					holdOperation(t, holder, end)
					calls := 0
					c := startCopy(t.Context(), e, another("2"), func(ctx context.Context) ([]*message.Message, error) {
						calls++
						result, err := e.Operate(ctx, pay("1"), gives("mine"))
						if err == nil {
							require.Equal(t, failure == nil, result.Repeated)
						}
						return nil, nil // hiding the error does not help
					})
					require.False(t, c.ended())
					require.Equal(t, 1, backend.open(), "only the holder's")
					time.Sleep(time.Second)
					synctest.Wait()
					require.Equal(t, 1, calls)
					require.Equal(t, elsewhere, backend.probes > 0)
					end <- failure
					time.Sleep(time.Second)
					synctest.Wait()
					require.True(t, c.ended())
					require.NoError(t, c.err)
					require.Equal(t, 2, calls)
					require.GreaterOrEqual(t, c.result.Wait, time.Second)
					require.Zero(t, backend.open())
				})
			})
		}
	}
}

func TestWaitForAnOperationIsBounded(t *testing.T) {
	t.Parallel()
	for _, elsewhere := range []bool{false, true} {
		for _, wait := range []time.Duration{-1, 3 * time.Second} {
			for _, alone := range []bool{false, true} {
				synctest.Test(t, func(t *testing.T) {
					backend := newFakeOperations()
					e := engine.New(backend, engine.Settings{InFlightWait: wait})
					holder := e
					if elsewhere {
						holder = engine.New(backend, engine.Settings{})
					}
					end := make(chan error, 1)
					defer close(end)
					holdOperation(t, holder, end)
					began := time.Now()
					var err error
					if alone {
						_, err = e.Operate(t.Context(), pay("1"), notRun(t))
					} else {
						_, err = e.Process(t.Context(), another("2"), operating(e, pay("1"), notRun(t)))
						var named *inbox.Error
						require.ErrorAs(t, err, &named)
						require.Equal(t, inbox.PhaseHandle, named.Phase)
					}
					require.ErrorIs(t, err, inbox.ErrInFlight)
					require.True(t, inbox.IsTransient(err))
					var operation *inbox.OperationError
					require.ErrorAs(t, err, &operation)
					require.Equal(t, "1", operation.ID)
					require.Equal(t, max(wait, 0), time.Since(began))
					require.Equal(t, 1, backend.open())
				})
			}
		}
	}
}

func TestContextEndsWhileWaitingForAnOperation(t *testing.T) {
	t.Parallel()
	for _, elsewhere := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			backend := newFakeOperations()
			e := engine.New(backend, engine.Settings{InFlightWait: time.Hour})
			holder := e
			if elsewhere {
				holder = engine.New(backend, engine.Settings{})
			}
			end := make(chan error, 1)
			holdOperation(t, holder, end)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			_, err := e.Process(ctx, another("2"), operating(e, pay("1"), notRun(t)))
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.ErrorIs(t, err, inbox.ErrInFlight)
			end <- nil
		})
	}
}

func TestAFailureInsideAnOperationDoomsTheTransaction(t *testing.T) {
	t.Parallel()
	declined := errors.New("declined")
	for name, tt := range map[string]struct {
		work inbox.OperationFunc
		is   error
	}{
		"error": {fails(declined), declined},
		"panic": {func(context.Context) (inbox.OperationResult, error) { panic("declined") }, nil},
		"exit":  {func(context.Context) (inbox.OperationResult, error) { runtime.Goexit(); panic("unreachable") }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			backend := newFakeOperations()
			e := engine.New(backend, engine.Settings{})
			_, err := e.Process(t.Context(), another("1"), func(ctx context.Context) ([]*message.Message, error) {
				done := make(chan struct{})
				go func() {
					defer close(done)
					defer func() { _ = recover() }()
					_, _ = e.Operate(ctx, pay("1"), tt.work)
				}()
				<-done
				_, err := e.Operate(ctx, pay("2"), notRun(t))
				require.Error(t, err, "nothing more is done in a doomed transaction")
				return nil, nil
			})
			var operation *inbox.OperationError
			require.ErrorAs(t, err, &operation)
			require.Equal(t, "1", operation.ID)
			if tt.is != nil {
				require.ErrorIs(t, err, tt.is)
			}
			require.Empty(t, backend.rows)
			backend.requireEnds(t, "rollback")
		})
	}
}

func TestAnOperationsErrorIsToldOnce(t *testing.T) {
	t.Parallel()
	e := engine.New(newFakeOperations(), engine.Settings{})
	_, err := e.Process(t.Context(), another("1"), operating(e, pay("1"), fails(errors.New("declined"))))
	require.Equal(t, 1, strings.Count(err.Error(), "declined"), err.Error())
	require.Equal(t, 1, strings.Count(err.Error(), "operation charge/1"), err.Error())
}

func TestOperationsThatCannotBeClaimed(t *testing.T) {
	t.Parallel()
	done := pay("done")
	done.Fingerprint[0] = 1
	for name, tt := range map[string]struct {
		op inbox.Operation
		is error
	}{
		"no id":          {inbox.Operation{Scope: "charge"}, inbox.ErrNoOperationID},
		"no scope":       {inbox.Operation{ID: "1"}, inbox.ErrNoScope},
		"long id":        {pay(strings.Repeat("k", inbox.MaxIDLength+1)), inbox.ErrOperationIDTooLong},
		"invalid":        {inbox.Operation{Invalid: inbox.ErrOperationIDRefused}, inbox.ErrOperationIDRefused},
		"other content":  {done, inbox.ErrMismatch},
		"same key":       {pay("collides"), inbox.ErrKeyCollision},
		"spoilt record":  {pay("spoilt"), nil},
		"database fails": {pay("1"), inbox.ErrUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, alone := range []bool{true, false} {
				backend := newFakeOperations()
				backend.rows[pay("done").Storage()] = &engine.OperationRow{Scope: "charge", ID: "done"}
				backend.rows[pay("collides").Storage()] = &engine.OperationRow{Scope: "charge", ID: "another"}
				backend.rows[pay("spoilt").Storage()] = &engine.OperationRow{Scope: "charge", ID: "spoilt", Messages: []byte("?")}
				if name == "database fails" {
					backend.claimErr = dbError{engine.FaultOther}
				}
				e := engine.New(backend, engine.Settings{})
				var err error
				if alone {
					_, err = e.Operate(t.Context(), tt.op, notRun(t))
				} else {
					_, err = e.Process(t.Context(), another("1"), operating(e, tt.op, notRun(t)))
				}
				require.Error(t, err)
				if tt.is != nil {
					require.ErrorIs(t, err, tt.is)
				}
				var operation *inbox.OperationError
				require.ErrorAs(t, err, &operation)
				require.Zero(t, backend.open())
			}
		})
	}
}

func TestNestedOperations(t *testing.T) {
	t.Parallel()
	backend := newFakeOperations()
	e, other := engine.New(backend, engine.Settings{}), engine.New(newFakeOperations(), engine.Settings{})
	for name, fn := range map[string]inbox.Func{
		"another store": operating(other, pay("1"), notRun(t)),
		"inside itself": operating(e, pay("1"), func(ctx context.Context) (inbox.OperationResult, error) {
			return e.Operate(ctx, pay("1"), notRun(t))
		}),
		"a message inside": operating(e, pay("1"), func(ctx context.Context) (inbox.OperationResult, error) {
			_, err := e.Process(ctx, another("2"), never(t))
			return inbox.OperationResult{}, err
		}),
	} {
		_, err := e.Process(t.Context(), another("1"), fn)
		require.ErrorIs(t, err, inbox.ErrNested, name)
		require.Empty(t, backend.rows)
	}
	_, err := e.Operate(t.Context(), pay("1"), func(ctx context.Context) (inbox.OperationResult, error) {
		_, err := e.Process(ctx, another("2"), never(t))
		return inbox.OperationResult{}, err
	})
	require.ErrorIs(t, err, inbox.ErrNested, "the layers in the wrong order")
	_, err = e.Operate(t.Context(), pay("1"), func(ctx context.Context) (inbox.OperationResult, error) {
		return e.Operate(ctx, pay("2"), gives(""))
	})
	require.NoError(t, err, "another operation inside")
	require.Len(t, backend.rows, 2)
}

func TestProposals(t *testing.T) {
	t.Parallel()
	op, other := pay("1"), pay("1")
	other.Fingerprint[0] = 1
	propose := func(id string) inbox.Delivery {
		d := another(id)
		d.Operation = &op
		return d
	}
	t.Run("taken up", func(t *testing.T) {
		t.Parallel()
		backend := newFakeOperations()
		e := engine.New(backend, engine.Settings{})
		result, err := e.Process(t.Context(), propose("1"), operating(e, op, gives("receipt")))
		require.NoError(t, err)
		require.False(t, result.ProposalUnused)
		result, err = e.Process(t.Context(), propose("2"), operating(e, op, notRun(t)))
		require.NoError(t, err)
		require.False(t, result.ProposalUnused)
		require.Equal(t, []string{"commit"}, backend.txs[0].ends)
	})
	t.Run("not taken up", func(t *testing.T) {
		t.Parallel()
		backend := newFakeOperations()
		e := engine.New(backend, engine.Settings{})
		result, err := e.Process(t.Context(), propose("1"), use)
		require.NoError(t, err)
		require.True(t, result.ProposalUnused)
		require.Empty(t, backend.rows)
		require.Equal(t, []string{"drop", "commit"}, backend.txs[0].ends)
		backend.rows[op.Storage()] = &engine.OperationRow{Scope: "charge", ID: "1"}
		result, err = e.Process(t.Context(), propose("2"), use)
		require.NoError(t, err)
		require.True(t, result.ProposalUnused)
		require.Equal(t, []string{"commit"}, backend.txs[1].ends, "there is nothing of its own to drop")
		require.Len(t, backend.rows, 1)
	})
	t.Run("other content", func(t *testing.T) {
		t.Parallel()
		backend := newFakeOperations()
		e := engine.New(backend, engine.Settings{})
		result, err := e.Process(t.Context(), propose("1"), operating(e, other, gives("receipt")))
		require.NoError(t, err)
		require.True(t, result.ProposalUnused)
		require.Equal(t, other.Fingerprint, backend.rows[op.Storage()].Fingerprint)
		_, err = e.Process(t.Context(), propose("2"), operating(e, op, notRun(t)))
		require.ErrorIs(t, err, inbox.ErrMismatch)
	})
	t.Run("held elsewhere", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			backend := newFakeOperations()
			e := engine.New(backend, engine.Settings{})
			end := make(chan error, 1)
			holdOperation(t, e, end)
			c := startCopy(t.Context(), e, propose("2"), operating(e, op, gives("mine")))
			require.False(t, c.ended())
			require.Equal(t, 1, backend.open())
			time.Sleep(time.Second)
			end <- errors.New("declined")
			synctest.Wait()
			require.True(t, c.ended())
			require.NoError(t, c.err)
			require.Equal(t, "mine", string(backend.rows[op.Storage()].Result))
		})
	})
}

func TestOperationAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		backend := newFakeOperations()
		e := engine.New(backend, engine.Settings{})
		var kept context.Context
		calls := 0
		result, err := e.Operate(t.Context(), pay("1"), func(ctx context.Context) (inbox.OperationResult, error) {
			kept = ctx
			_, err := engine.TxFromContext[*handle](ctx)
			require.NoError(t, err)
			if calls++; calls < 3 {
				return inbox.OperationResult{}, dbError{engine.FaultSerialization}
			}
			return inbox.OperationResult{Value: []byte("receipt")}, nil
		})
		require.NoError(t, err)
		require.Equal(t, "receipt", string(result.Value))
		require.False(t, result.Repeated)
		require.Equal(t, 3, calls, "run again after a serialization failure")
		_, err = engine.TxFromContext[*handle](kept)
		require.ErrorIs(t, err, inbox.ErrNoTx)

		result, err = e.Operate(kept, pay("1"), notRun(t))
		require.NoError(t, err, "a context that outlives its transaction is any other context")
		require.True(t, result.Repeated)
		require.Equal(t, "receipt", string(result.Value))

		commits := 0
		backend.commit = func(context.Context) error {
			if commits++; commits == 1 {
				return dbError{engine.FaultSerialization}
			}
			return nil
		}
		_, err = e.Operate(t.Context(), pay("2"), gives(""))
		require.NoError(t, err, "so is a commit that was given up")
		backend.commit = func(context.Context) error { return errors.New("connection reset by peer") }
		_, err = e.Operate(t.Context(), pay("3"), gives(""))
		require.ErrorIs(t, err, inbox.ErrCommitUnknown)
		var named *inbox.Error
		require.NotErrorAs(t, err, &named, "there is no message")
		backend.commit = nil
		require.Panics(t, func() {
			_, _ = e.Operate(t.Context(), pay("4"), func(context.Context) (inbox.OperationResult, error) { panic("declined") })
		})
		require.Zero(t, backend.open())
		require.Len(t, backend.rows, 2)
		result, err = e.Operate(t.Context(), pay("4"), gives("now"))
		require.NoError(t, err, "nobody is waited for")
		require.Equal(t, "now", string(result.Value))
	})
}

func TestASerializationFailureInsideAnOperationIsRunAgain(t *testing.T) {
	t.Parallel()
	for _, where := range []string{"claim", "work", "hidden"} {
		synctest.Test(t, func(t *testing.T) {
			backend := newFakeOperations()
			e := engine.New(backend, engine.Settings{})
			calls := 0
			if where == "claim" {
				backend.claimErr = dbError{engine.FaultSerialization}
			}
			result, err := e.Process(t.Context(), another("1"), func(ctx context.Context) ([]*message.Message, error) {
				_, err := e.Operate(ctx, pay("1"), func(context.Context) (inbox.OperationResult, error) {
					if calls++; calls == 1 && where != "claim" {
						return inbox.OperationResult{}, fmt.Errorf("book: %w", dbError{engine.FaultSerialization})
					}
					return inbox.OperationResult{}, nil
				})
				if where == "hidden" {
					return nil, nil
				}
				return nil, err
			})
			require.NoError(t, err, where)
			require.Equal(t, 1, result.TxRetries)
			require.Len(t, backend.rows, 1)
			require.Zero(t, backend.open())
		})
	}
}

func TestSerializationFailuresOfAnOperationEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, hidden := range []bool{false, true} {
			e := engine.New(newFakeOperations(), engine.Settings{})
			_, err := e.Process(t.Context(), another("1"), func(ctx context.Context) ([]*message.Message, error) {
				_, err := e.Operate(ctx, pay("1"), fails(dbError{engine.FaultSerialization}))
				if hidden {
					return nil, nil
				}
				return nil, err
			})
			require.ErrorIs(t, err, inbox.ErrSerialization)
			require.True(t, inbox.IsTransient(err))
		}
	})
}

func TestAStoreWithoutOperations(t *testing.T) {
	t.Parallel()
	e := engine.New(newFakeBackend(), engine.Settings{})
	_, err := e.Operate(t.Context(), pay("1"), notRun(t))
	require.ErrorContains(t, err, "no memory of operations")
	_, err = e.Process(t.Context(), another("1"), operating(e, pay("1"), notRun(t)))
	require.ErrorContains(t, err, "no memory of operations")
}
