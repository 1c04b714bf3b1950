package engine_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox/internal/engine"
)

// The tests that wait run on synctest's clock.

func TestFirstDelivery(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		backend := newFakeBackend()
		produced := []*message.Message{message.NewMessage("1", nil)}
		var kept context.Context
		result, err := engine.New(backend, engine.Settings{}).Process(t.Context(), delivery, func(ctx context.Context) ([]*message.Message, error) {
			kept = ctx
			handle, err := engine.TxFromContext[*handle](ctx)
			require.NoError(t, err)
			require.Same(t, backend.txs[0].scope.Handle, handle)
			require.False(t, backend.txs[0].scope.Over())
			return produced, nil
		})
		require.NoError(t, err)
		require.Equal(t, inbox.Result{Outcome: inbox.OutcomeProcessed, Messages: produced}, result)
		backend.requireEnds(t, "commit")

		_, err = engine.TxFromContext[*handle](kept)
		require.ErrorIs(t, err, inbox.ErrNoTx, "the context outlives the transaction")
		require.True(t, backend.txs[0].scope.Over())
	})
}

func TestTxUnused(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		work   func(ctx context.Context)
		unused bool
	}{
		"asked":        {func(ctx context.Context) { _, _ = engine.TxFromContext[*handle](ctx) }, false},
		"never asked":  {func(context.Context) {}, true},
		"asked wrong":  {func(ctx context.Context) { _, _ = engine.TxFromContext[string](ctx) }, true},
		"asked before": {func(context.Context) { _, _ = engine.TxFromContext[*handle](context.Background()) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			result, err := engine.New(newFakeBackend(), engine.Settings{}).Process(t.Context(), delivery, func(ctx context.Context) ([]*message.Message, error) {
				tt.work(ctx)
				return nil, nil
			})
			require.NoError(t, err)
			require.Equal(t, tt.unused, result.TxUnused)
		})
	}
}

// The handler has done its work: nothing but the commit's own limit may stop it.
func TestCommitAndRollbackAreDetachedFromTheContext(t *testing.T) {
	t.Parallel()
	for _, own := range []error{nil, errors.New("mine")} {
		synctest.Test(t, func(t *testing.T) {
			backend := newFakeBackend()
			began := time.Now()
			backend.end = func(ctx context.Context) error {
				require.NoError(t, ctx.Err())
				deadline, ok := ctx.Deadline()
				require.True(t, ok)
				require.Equal(t, 7*time.Second, deadline.Sub(began))
				require.Equal(t, "value", ctx.Value(ctxKey{}))
				return nil
			}
			ctx, cancel := context.WithTimeout(context.WithValue(t.Context(), ctxKey{}, "value"), time.Minute)
			_, err := engine.New(backend, engine.Settings{CommitTimeout: 7 * time.Second}).Process(ctx, delivery, func(context.Context) ([]*message.Message, error) {
				cancel()
				return nil, own
			})
			if own == nil {
				require.NoError(t, err)
				backend.requireEnds(t, "commit")
			} else {
				requireError(t, err, inbox.PhaseHandle, own)
				backend.requireEnds(t, "rollback")
			}
		})
	}
}

func TestAFailedHandlerIsRolledBack(t *testing.T) {
	t.Parallel()
	own := errors.New("declined")
	backend := newFakeBackend()
	result, err := engine.New(backend, engine.Settings{}).Process(t.Context(), delivery, func(context.Context) ([]*message.Message, error) {
		return []*message.Message{message.NewMessage("1", nil)}, own
	})
	requireError(t, err, inbox.PhaseHandle, own)
	require.EqualError(t, err, "inbox: handle c/42 (handler charge): declined")
	require.Empty(t, result.Messages)
	require.False(t, inbox.IsTransient(err) || inbox.IsPermanent(err))
	backend.requireEnds(t, "rollback")
}

func TestPanicAndGoexitRollBack(t *testing.T) {
	t.Parallel()
	own := errors.New("mine")
	for name, tt := range map[string]struct {
		work func()
		want any
	}{
		"panic":    {func() { panic(own) }, own},
		"nil func": {func() { work := map[string]func(){}; work["x"]() }, nil},
		"Goexit":   {runtime.Goexit, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			backend := newFakeBackend()
			ctx, cancel := context.WithCancel(t.Context())
			backend.end = func(ctx context.Context) error {
				if ctx.Err() != nil {
					t.Error("the rollback died with the message's context")
				}
				return nil
			}
			returned := false
			var panicked any
			done := make(chan struct{})
			go func() {
				defer close(done)
				defer func() { panicked = recover() }()
				_, _ = engine.New(backend, engine.Settings{}).Process(ctx, delivery, func(context.Context) ([]*message.Message, error) {
					cancel()
					tt.work()
					return nil, nil
				})
				returned = true
			}()
			<-done
			require.False(t, returned, "it goes on")
			if tt.want != nil {
				require.Equal(t, tt.want, panicked)
			}
			backend.requireEnds(t, "rollback")
			require.True(t, backend.txs[0].scope.Over())
		})
	}
}

func TestAPanicOfTheDriverGivesTheConnectionBack(t *testing.T) {
	t.Parallel()
	backend := newFakeBackend()
	backend.commit = func(context.Context) error { panic("driver") }
	require.PanicsWithValue(t, "driver", func() {
		_, _ = engine.New(backend, engine.Settings{}).Process(t.Context(), delivery, use)
	})
	backend.requireEnds(t, "commit", "rollback")
}

func TestABusyKeyIsWaitedForUntilInFlightWait(t *testing.T) {
	t.Parallel()
	for name, busy := range map[string]step{
		"no answer": func(context.Context) (engine.Answer, error) { return engine.Answer{}, nil },
		"no row":    taken(&engine.Row{}),
		"an error of the database": func(context.Context) (engine.Answer, error) {
			return engine.Answer{}, dbError{engine.FaultBusy}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				backend := newFakeBackend(busy)
				began := time.Now()
				result, err := engine.New(backend, engine.Settings{}).Process(t.Context(), delivery, never(t))
				requireError(t, err, inbox.PhaseClaim, inbox.ErrInFlight)
				require.True(t, inbox.IsTransient(err))
				require.Equal(t, 5*time.Second, time.Since(began))
				require.Equal(t, 5*time.Second, result.Wait, "told beside the error too")
				require.ErrorContains(t, err, "waited 5s (InFlightWait is 5s)")
				require.Greater(t, len(backend.claims), 5*10, "at least every 150 ms")
				require.Less(t, len(backend.claims), 5*30, "pauses grow")
				require.Equal(t, 5*time.Second, backend.waits[0])
				require.True(t, slices.IsSortedFunc(backend.waits, func(a, b time.Duration) int { return int(b - a) }), "what is left of it")
				require.Zero(t, backend.waits[len(backend.waits)-1])
				require.Empty(t, backend.txs)
			})
		})
	}
}

// On a database whose claim cannot do without waiting, that time is part of InFlightWait.
func TestTimeInABusyClaimCounts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		backend := newFakeBackend(func(context.Context) (engine.Answer, error) {
			time.Sleep(4 * time.Second)
			return engine.Answer{}, dbError{engine.FaultBusy}
		})
		result, err := engine.New(backend, engine.Settings{InFlightWait: 10 * time.Second}).Process(t.Context(), delivery, never(t))
		requireError(t, err, inbox.PhaseClaim, inbox.ErrInFlight)
		require.Len(t, backend.claims, 3)
		require.Less(t, result.Wait, 13*time.Second)
		require.GreaterOrEqual(t, result.Wait, 12*time.Second)
	})
}

func TestABusyKeyThatBecomesFree(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		then step
		want inbox.Outcome
	}{
		"the other one failed":   {claimed, inbox.OutcomeProcessed},
		"the other one finished": {taken(rowOf(delivery)), inbox.OutcomeDuplicate},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				backend := newFakeBackend(free, free, free, tt.then)
				began := time.Now()
				result, err := engine.New(backend, engine.Settings{}).Process(t.Context(), delivery, use)
				require.NoError(t, err)
				require.Equal(t, tt.want, result.Outcome)
				require.Len(t, backend.claims, 4)
				require.Positive(t, result.Wait)
				require.Equal(t, time.Since(began), result.Wait)
				require.Less(t, result.Wait, 50*time.Millisecond, "the first pauses are short")
				require.Zero(t, result.TxRetries)
			})
		})
	}
}

func TestWithoutInFlightWaitABusyKeyIsAnsweredAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		backend := newFakeBackend(free)
		began := time.Now()
		result, err := engine.New(backend, engine.Settings{InFlightWait: -1}).Process(t.Context(), delivery, never(t))
		requireError(t, err, inbox.PhaseClaim, inbox.ErrInFlight)
		require.Zero(t, time.Since(began))
		require.Zero(t, result.Wait)
		require.Equal(t, []time.Duration{0}, backend.waits)
	})
}

func TestAContextThatEndsWhileWaiting(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		backend := newFakeBackend(free)
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		began := time.Now()
		result, err := engine.New(backend, engine.Settings{}).Process(ctx, delivery, never(t))
		requireError(t, err, inbox.PhaseClaim, inbox.ErrInFlight, context.Canceled)
		require.Equal(t, time.Second, time.Since(began), "at once")
		require.Equal(t, time.Second, result.Wait)
	})
}

func TestAContextThatEndsInTheClaim(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]error{
		"the context's error":   context.Canceled,
		"wrapped":               fmt.Errorf("timeout: %w", context.Canceled),
		"the database's answer": dbError{engine.FaultSerialization},
		"a dead connection":     dbError{engine.FaultLost},
		"a stale plan":          dbError{engine.FaultStalePlan},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithCancel(t.Context())
			backend := newFakeBackend(func(context.Context) (engine.Answer, error) {
				cancel()
				return engine.Answer{}, answer
			})
			_, err := engine.New(backend, engine.Settings{}).Process(ctx, delivery, never(t))
			requireError(t, err, inbox.PhaseClaim, answer)
			require.True(t, inbox.IsTransient(err))
			require.Len(t, backend.claims, 1, "nothing is tried again for nobody")
			if errors.Is(answer, context.Canceled) {
				require.NotErrorIs(t, err, inbox.ErrUnavailable)
			}
		})
	}
}

// The three places where a serialization failure can come up, each on its own and all together.
func TestSerializationFailuresAreRunAgain(t *testing.T) {
	t.Parallel()
	conflict := dbError{engine.FaultSerialization}
	for _, tt := range []struct {
		name                   string
		claim, handler, commit int // how often it fails there
		settings               engine.Settings
		retries                int
		phase                  inbox.Phase // of the error; empty: none
	}{
		{name: "claim", claim: 3, retries: 3},
		{name: "handler", handler: 3, retries: 3},
		{name: "commit", commit: 3, retries: 3},
		{name: "one each", claim: 1, handler: 1, commit: 1, retries: 3},
		{name: "claim given up", claim: 4, retries: 3, phase: inbox.PhaseClaim},
		{name: "handler given up", handler: 4, retries: 3, phase: inbox.PhaseHandle},
		{name: "commit given up", commit: 4, retries: 3, phase: inbox.PhaseCommit},
		{name: "counted together", claim: 1, handler: 1, commit: 2, retries: 3, phase: inbox.PhaseCommit},
		{name: "one retry", handler: 2, settings: engine.Settings{TxRetries: 1}, retries: 1, phase: inbox.PhaseHandle},
		{name: "ten retries", handler: 10, settings: engine.Settings{TxRetries: 10}, retries: 10},
		{name: "never at the claim", claim: 1, settings: engine.Settings{TxRetries: -1}, phase: inbox.PhaseClaim},
		{name: "never in the handler", handler: 1, settings: engine.Settings{TxRetries: -1}, phase: inbox.PhaseHandle},
		{name: "never at the commit", commit: 1, settings: engine.Settings{TxRetries: -1}, phase: inbox.PhaseCommit},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				left := tt
				backend := newFakeBackend(func(context.Context) (engine.Answer, error) {
					if left.claim > 0 {
						left.claim--
						return engine.Answer{}, conflict
					}
					return claimed(context.Background())
				})
				backend.commit = func(context.Context) error {
					if left.commit > 0 {
						left.commit--
						return fmt.Errorf("COMMIT: %w", conflict)
					}
					return nil
				}
				logger := watermill.NewCaptureLogger()
				tt.settings.Logger = logger
				ran := 0
				began := time.Now()
				result, err := engine.New(backend, tt.settings).Process(t.Context(), delivery, func(context.Context) ([]*message.Message, error) {
					ran++
					for _, tx := range backend.txs[:len(backend.txs)-1] {
						require.Contains(t, tx.ends, "rollback", "before the next one begins")
					}
					if left.handler > 0 {
						left.handler--
						return nil, fmt.Errorf("charge: %w", conflict)
					}
					return []*message.Message{message.NewMessage(fmt.Sprint(ran), nil)}, nil
				})
				require.Equal(t, tt.retries, result.TxRetries)
				require.Len(t, logger.Captured()[watermill.DebugLogLevel], tt.retries)
				require.Len(t, logger.Captured(), min(tt.retries, 1), "as Debug only")
				require.Less(t, time.Since(began), 10*100*time.Millisecond)
				require.Equal(t, tt.retries > 0, time.Since(began) > 0, "a pause between two transactions that met")
				require.Zero(t, result.Wait, "that is another kind of waiting")
				require.Zero(t, backend.open())
				if tt.phase != "" {
					requireError(t, err, tt.phase, inbox.ErrSerialization, conflict)
					require.True(t, inbox.IsTransient(err))
					require.Empty(t, result.Messages)
					return
				}
				require.NoError(t, err)
				require.Equal(t, inbox.OutcomeProcessed, result.Outcome)
				require.Equal(t, fmt.Sprint(ran), result.Messages[0].UUID, "of the last run")
				require.Equal(t, 1+tt.handler+tt.commit, ran)
			})
		})
	}
}

// Only an error that wraps the database's own is known to be one.
func TestAHiddenSerializationFailureIsNotRunAgain(t *testing.T) {
	t.Parallel()
	backend := newFakeBackend()
	ran := 0
	result, err := engine.New(backend, engine.Settings{}).Process(t.Context(), delivery, func(context.Context) ([]*message.Message, error) {
		ran++
		return nil, errors.New("charge: " + dbError{engine.FaultSerialization}.Error())
	})
	require.Error(t, err)
	require.Equal(t, 1, ran)
	require.Zero(t, result.TxRetries)
	require.False(t, inbox.IsTransient(err))
}

func TestNoRetryForAnEndedContext(t *testing.T) {
	t.Parallel()
	for _, phase := range []inbox.Phase{inbox.PhaseHandle, inbox.PhaseCommit} {
		t.Run(string(phase), func(t *testing.T) {
			t.Parallel()
			conflict := dbError{engine.FaultSerialization}
			backend := newFakeBackend()
			ctx, cancel := context.WithCancel(t.Context())
			work := func(context.Context) ([]*message.Message, error) { cancel(); return nil, conflict }
			if phase == inbox.PhaseCommit {
				backend.commit = func(context.Context) error { return conflict }
				work = func(context.Context) ([]*message.Message, error) { cancel(); return nil, nil }
			}
			_, err := engine.New(backend, engine.Settings{}).Process(ctx, delivery, work)
			requireError(t, err, phase, inbox.ErrSerialization, conflict)
			require.Len(t, backend.claims, 1)
			require.Zero(t, backend.open())
		})
	}
}

// SQLite answers busy to a COMMIT when a reader is in its way: nothing was committed.
func TestABusyCommitIsRunAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		backend := newFakeBackend()
		tries := 0
		backend.commit = func(context.Context) error {
			if tries++; tries < 3 {
				return dbError{engine.FaultBusy}
			}
			return nil
		}
		result, err := engine.New(backend, engine.Settings{}).Process(t.Context(), delivery, use)
		require.NoError(t, err)
		require.Equal(t, 2, result.TxRetries)

		tries = -100
		_, err = engine.New(backend, engine.Settings{}).Process(t.Context(), delivery, use)
		requireError(t, err, inbox.PhaseCommit, inbox.ErrSerialization, dbError{engine.FaultBusy})
		require.Zero(t, backend.open())
	})
}

// The commit may have happened: only the redelivery can find out, by looking.
func TestAnUnknownCommitIsNotRunAgain(t *testing.T) {
	t.Parallel()
	for name, lost := range map[string]error{
		"told by the driver": dbError{engine.FaultLost},
		"no answer at all":   errors.New("unexpected EOF"),
		"with a context's":   fmt.Errorf("timeout: %w", context.DeadlineExceeded),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			backend := newFakeBackend()
			backend.commit = func(context.Context) error { return lost }
			ran := 0
			result, err := engine.New(backend, engine.Settings{}).Process(t.Context(), delivery, func(context.Context) ([]*message.Message, error) {
				ran++
				return []*message.Message{message.NewMessage("1", nil)}, nil
			})
			requireError(t, err, inbox.PhaseCommit, inbox.ErrCommitUnknown, lost)
			require.NotErrorIs(t, err, inbox.ErrSerialization)
			require.True(t, inbox.IsTransient(err))
			require.Equal(t, 1, ran)
			require.Len(t, backend.claims, 1)
			require.Empty(t, result.Messages)
			require.Zero(t, result.TxRetries)
			backend.requireEnds(t, "commit", "rollback") // which gives the connection back
		})
	}
}

func TestACommitWithoutAnAnswerEndsWithCommitTimeout(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		backend := newFakeBackend()
		backend.commit = func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		}
		began := time.Now()
		_, err := engine.New(backend, engine.Settings{}).Process(t.Context(), delivery, use)
		requireError(t, err, inbox.PhaseCommit, inbox.ErrCommitUnknown, context.DeadlineExceeded)
		require.Equal(t, 10*time.Second, time.Since(began))
		require.Zero(t, backend.open())
	})
}

func TestFaultsOfACommit(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		err   error
		phase inbox.Phase
		want  error
	}{
		"managed":               {fmt.Errorf("%w (detail)", inbox.ErrTxManaged), inbox.PhaseHandle, inbox.ErrTxManaged},
		"aborted":               {fmt.Errorf("%w (detail)", inbox.ErrTxAborted), inbox.PhaseHandle, inbox.ErrTxAborted},
		"unavailable":           {dbError{engine.FaultUnavailable}, inbox.PhaseCommit, inbox.ErrUnavailable},
		"read-only":             {dbError{engine.FaultReadOnly}, inbox.PhaseCommit, inbox.ErrReadOnly},
		"a deferred constraint": {dbError{engine.FaultOther}, inbox.PhaseCommit, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			backend := newFakeBackend()
			backend.commit = func(context.Context) error { return tt.err }
			_, err := engine.New(backend, engine.Settings{}).Process(t.Context(), delivery, use)
			requireError(t, err, tt.phase, tt.err)
			require.ErrorIs(t, err, tt.err)
			require.NotErrorIs(t, err, inbox.ErrCommitUnknown)
			require.Equal(t, tt.want != nil, inbox.IsTransient(err))
			if tt.want != nil {
				require.ErrorIs(t, err, tt.want)
			}
			require.Len(t, backend.claims, 1)
			backend.requireEnds(t, "commit", "rollback")
		})
	}
}

// An idle connection that a restart or a proxy had killed, or a cached statement that no longer fits: once more, then
// it is told.
func TestAClaimIsTriedOnceMore(t *testing.T) {
	t.Parallel()
	lost, stale, refused := dbError{engine.FaultLost}, dbError{engine.FaultStalePlan}, errors.New("connection refused")
	for _, tt := range []struct {
		name   string
		errs   []error
		claims int
		want   error // nil: processed
	}{
		{"lost", []error{lost}, 2, nil},
		{"no answer of the database", []error{refused}, 2, nil},
		{"stale plan", []error{stale}, 2, nil},
		{"one of each", []error{lost, stale}, 3, nil},
		{"lost again", []error{lost, lost}, 2, lost},
		{"refused again", []error{lost, refused}, 2, refused},
		{"stale again", []error{stale, stale}, 2, stale},
		{"stale between", []error{lost, stale, lost}, 3, lost},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var steps []step
				for _, err := range tt.errs {
					steps = append(steps, func(context.Context) (engine.Answer, error) { return engine.Answer{}, err })
				}
				backend := newFakeBackend(append(steps, claimed)...)
				result, err := engine.New(backend, engine.Settings{}).Process(t.Context(), delivery, use)
				require.Len(t, backend.claims, tt.claims)
				require.Zero(t, result.TxRetries, "no serialization failure")
				require.Zero(t, result.Wait)
				if tt.want == nil {
					require.NoError(t, err)
					require.Equal(t, inbox.OutcomeProcessed, result.Outcome)
					return
				}
				requireError(t, err, inbox.PhaseClaim, inbox.ErrUnavailable, tt.want)
				require.True(t, inbox.IsTransient(err))
			})
		})
	}
}

func TestFaultsOfAClaimThatAreToldAtOnce(t *testing.T) {
	t.Parallel()
	for fault, want := range map[engine.Fault]error{
		engine.FaultSchema:      inbox.ErrSchema,
		engine.FaultReadOnly:    inbox.ErrReadOnly,
		engine.FaultUnavailable: inbox.ErrUnavailable,
		engine.FaultNoPartition: inbox.ErrNoPartition,
		engine.FaultOther:       dbError{engine.FaultOther},
	} {
		backend := newFakeBackend(func(context.Context) (engine.Answer, error) { return engine.Answer{}, dbError{fault} })
		_, err := engine.New(backend, engine.Settings{}).Process(t.Context(), delivery, never(t))
		requireError(t, err, inbox.PhaseClaim, want, dbError{fault})
		require.Len(t, backend.claims, 1)
	}
}

// The claim's values are bound and encoded: whatever the database has against the statement (a lock timeout, a
// statement timeout, a right that is missing), another message would have met it too. It must not go to a poison queue.
func TestAnErrorOfTheClaimIsNeverTheMessagesFault(t *testing.T) {
	t.Parallel()
	backend := newFakeBackend(func(context.Context) (engine.Answer, error) { return engine.Answer{}, dbError{engine.FaultOther} })
	_, err := engine.New(backend, engine.Settings{}).Process(t.Context(), delivery, never(t))
	require.True(t, inbox.IsTransient(err), err)
}

// An error of the handler is judged by the database's own answer only: its "connection refused" may be another server's.
func TestFaultsOfAHandler(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		err  error
		want error // the inbox's name for it; nil: none
	}{
		"lost":        {dbError{engine.FaultLost}, inbox.ErrUnavailable},
		"unavailable": {dbError{engine.FaultUnavailable}, inbox.ErrUnavailable},
		"read-only":   {dbError{engine.FaultReadOnly}, inbox.ErrReadOnly},
		"refused":     {errors.New("dial tcp 127.0.0.1:80: connection refused"), nil},
		"own table":   {dbError{engine.FaultSchema}, nil},
		"constraint":  {dbError{engine.FaultOther}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			backend := newFakeBackend()
			_, err := engine.New(backend, engine.Settings{}).Process(t.Context(), delivery, func(context.Context) ([]*message.Message, error) {
				return nil, fmt.Errorf("charge: %w", tt.err)
			})
			requireError(t, err, inbox.PhaseHandle, tt.err)
			require.Equal(t, tt.want != nil, inbox.IsTransient(err))
			if tt.want != nil {
				require.ErrorIs(t, err, tt.want)
			}
			require.Len(t, backend.claims, 1)
			backend.requireEnds(t, "rollback")
		})
	}
}

func TestAHandlersErrorOnADeadConnection(t *testing.T) {
	t.Parallel()
	own, dead := errors.New("declined"), errors.New("write: broken pipe")
	backend := newFakeBackend()
	backend.end = func(context.Context) error { return dead }
	_, err := engine.New(backend, engine.Settings{}).Process(t.Context(), delivery, func(context.Context) ([]*message.Message, error) {
		return nil, own
	})
	requireError(t, err, inbox.PhaseHandle, own, dead, inbox.ErrUnavailable)
	require.True(t, inbox.IsTransient(err), "the message stays in the broker")
	require.ErrorContains(t, err, "declined; rollback: write: broken pipe")
}

func TestADoomedTransactionIsRolledBack(t *testing.T) {
	t.Parallel()
	doom := fmt.Errorf("%w (Commit)", inbox.ErrTxManaged)
	own := errors.New("declined")
	conflict := dbError{engine.FaultSerialization}
	for name, tt := range map[string]struct {
		work, rollback error
		want           []error
		text           string
	}{
		"the handler returned nil":       {nil, nil, []error{doom}, "inbox: handle c/42 (handler charge): " + doom.Error()},
		"the handler failed too":         {own, nil, []error{own, doom}, "inbox: handle c/42 (handler charge): declined; " + doom.Error()},
		"a serialization failure too":    {conflict, nil, []error{conflict, doom}, ""},
		"the rollback failed":            {nil, errors.New("broken pipe"), []error{doom}, ""},
		"the handler and the connection": {own, errors.New("broken pipe"), []error{own, doom, inbox.ErrUnavailable}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			backend := newFakeBackend()
			backend.end = func(context.Context) error { return tt.rollback }
			result, err := engine.New(backend, engine.Settings{}).Process(t.Context(), delivery, func(context.Context) ([]*message.Message, error) {
				backend.txs[0].scope.Doom(doom)
				backend.txs[0].scope.Doom(errors.New("a later one"))
				return nil, tt.work
			})
			requireError(t, err, inbox.PhaseHandle, tt.want...)
			if tt.text != "" {
				require.EqualError(t, err, tt.text)
			}
			require.True(t, inbox.IsTransient(err))
			require.Zero(t, result.TxRetries, "a handler that ends transactions does so again")
			require.Len(t, backend.claims, 1)
			backend.requireEnds(t, "rollback")
		})
	}
}

// On database/sql it is the rollback that finds out that the handler had ended the transaction.
func TestARollbackThatFindsTheTransactionEnded(t *testing.T) {
	t.Parallel()
	for name, work := range map[string]error{"error": errors.New("declined"), "conflict": dbError{engine.FaultSerialization}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			backend := newFakeBackend()
			backend.end = func(context.Context) error { return inbox.ErrTxManaged }
			result, err := engine.New(backend, engine.Settings{}).Process(t.Context(), delivery, func(context.Context) ([]*message.Message, error) {
				return nil, work
			})
			requireError(t, err, inbox.PhaseHandle, work, inbox.ErrTxManaged)
			require.NotErrorIs(t, err, inbox.ErrUnavailable)
			require.Zero(t, result.TxRetries, "what it did before may be committed: not again")
		})
	}
}

// TxUnused is for processed deliveries: a handler whose work is gone has nothing that is not protected.
func TestTxUnusedIsNotSetBesideAnError(t *testing.T) {
	t.Parallel()
	backend := newFakeBackend()
	backend.commit = func(context.Context) error { return dbError{engine.FaultOther} }
	result, err := engine.New(backend, engine.Settings{}).Process(t.Context(), delivery, func(context.Context) ([]*message.Message, error) {
		return nil, nil
	})
	require.Error(t, err)
	require.False(t, result.TxUnused)
}

func TestTheRecordTravelsWithTheCommit(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		record   bool
		produced int
		want     bool
	}{
		"recorded":           {true, 2, true},
		"nothing to record":  {true, 0, false},
		"not to be recorded": {false, 2, false},
		"neither":            {false, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var produced []*message.Message
			for i := range tt.produced {
				produced = append(produced, message.NewMessage(fmt.Sprint(i), []byte("x")))
			}
			d := delivery
			d.Record = tt.record
			backend := newFakeBackend()
			result, err := engine.New(backend, engine.Settings{}).Process(t.Context(), d, func(context.Context) ([]*message.Message, error) {
				return produced, nil
			})
			require.NoError(t, err)
			require.Equal(t, produced, result.Messages)
			record := backend.txs[0].record
			require.Equal(t, tt.want, record != nil)
			if !tt.want {
				return
			}
			require.Equal(t, d.StorageKey(), record.Key)
			require.Equal(t, "charge", record.Handler)

			row := rowOf(d)
			row.RecordedBy, row.Recorded = record.Handler, record.Messages
			again, err := engine.New(newFakeBackend(taken(row)), engine.Settings{}).Process(t.Context(), d, never(t))
			require.NoError(t, err)
			require.Equal(t, inbox.OutcomeDuplicate, again.Outcome)
			require.Equal(t, "charge", again.RecordedBy)
			require.Len(t, again.Messages, tt.produced)
			for i, msg := range again.Messages {
				require.True(t, msg.Equals(produced[i]))
			}
		})
	}
}

func TestProcessRaces(t *testing.T) {
	t.Parallel()
	backend := newFakeBackend()
	e := engine.New(backend, engine.Settings{})
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 50 {
				d := delivery
				d.Key.ID = fmt.Sprint(g, "/", i)
				_, _ = e.Process(t.Context(), d, func(ctx context.Context) ([]*message.Message, error) {
					if i%3 == 0 {
						return nil, errors.New("mine")
					}
					return use(ctx)
				})
			}
		})
	}
	wg.Wait()
	require.Len(t, backend.claims, 400)
	require.Zero(t, backend.open())
}

var delivery = inbox.Delivery{
	Key:         inbox.Key{Consumer: "c", ID: "42"},
	Handler:     "charge",
	Topic:       "orders",
	Fingerprint: inbox.Fingerprint{1},
}

type ctxKey struct{}

// use is a handler that asks for its transaction and has nothing else to do.
func use(ctx context.Context) ([]*message.Message, error) {
	_, err := engine.TxFromContext[*handle](ctx)
	return nil, err
}

// never is a handler that must not be called.
func never(t *testing.T) inbox.Func {
	t.Helper()
	return func(context.Context) ([]*message.Message, error) {
		t.Error("the handler was called")
		return nil, nil
	}
}

// rowOf is the row that a delivery leaves.
func rowOf(d inbox.Delivery) *engine.Row {
	return &engine.Row{
		Found: true, Processed: true, Fingerprint: d.Fingerprint,
		Consumer: engine.EncodeText(d.Key.Consumer), Source: engine.EncodeText(d.Key.Source), MessageID: engine.EncodeText(d.Key.ID),
	}
}

// requireError asks for an *inbox.Error of the phase that names the delivery and wraps the causes.
func requireError(t *testing.T, err error, phase inbox.Phase, causes ...error) {
	t.Helper()
	var e *inbox.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, phase, e.Phase)
	require.Equal(t, "42", e.Key.ID)
	require.Equal(t, "charge", e.Handler)
	for _, cause := range causes {
		require.ErrorIs(t, err, cause)
	}
}

// dbError is an answer of the fake database.
type dbError struct{ fault engine.Fault }

func (e dbError) Error() string { return fmt.Sprintf("ERROR: fault %d", e.fault) }

// step answers a claim.
type step func(ctx context.Context) (engine.Answer, error)

// claimed is the answer to a claim of a new key; the backend puts its transaction into it.
func claimed(context.Context) (engine.Answer, error) { return engine.Answer{Tx: &fakeTx{}}, nil }

// free is the answer for a key that somebody else holds.
func free(context.Context) (engine.Answer, error) { return engine.Answer{}, nil }

// taken is the answer for a key with a row.
func taken(row *engine.Row) step {
	return func(context.Context) (engine.Answer, error) { return engine.Answer{Row: row}, nil }
}

// fakeBackend answers claims with its steps, one after the other; the last one repeats.
type fakeBackend struct {
	commit func(ctx context.Context) error // the answer to COMMIT
	end    func(ctx context.Context) error // the answer to ROLLBACK, and to COMMIT without a commit

	mu        sync.Mutex
	steps     []step
	claims    []*engine.Claim
	waits     []time.Duration
	txs       []*fakeTx
	schemes   map[string]string
	schemeErr error
	asked     int // for schemes
}

func newFakeBackend(steps ...step) *fakeBackend {
	if len(steps) == 0 {
		steps = []step{claimed}
	}
	return &fakeBackend{steps: steps, schemes: map[string]string{}}
}

func (b *fakeBackend) Claim(ctx context.Context, c *engine.Claim, wait time.Duration) (engine.Answer, error) {
	b.mu.Lock()
	b.claims, b.waits = append(b.claims, c), append(b.waits, wait)
	next := b.steps[0]
	if len(b.steps) > 1 {
		b.steps = b.steps[1:]
	}
	b.mu.Unlock()
	answer, err := next(ctx)
	if answer.Tx != nil {
		b.mu.Lock()
		defer b.mu.Unlock()
		tx := &fakeTx{backend: b, scope: &engine.Scope{Handle: &handle{len(b.txs) + 1}}}
		b.txs = append(b.txs, tx)
		answer.Tx = tx
	}
	return answer, err
}

func (b *fakeBackend) Scheme(_ context.Context, s engine.Scheme, _ time.Duration) (string, error) {
	consumer, scheme := s.Consumer, s.Scheme
	b.mu.Lock()
	defer b.mu.Unlock()
	b.asked++
	if b.schemeErr != nil {
		return "", b.schemeErr
	}
	if b.schemes[consumer] == "" {
		b.schemes[consumer] = scheme
	}
	return b.schemes[consumer], nil
}

func (b *fakeBackend) Fault(err error) engine.Fault {
	var e dbError
	if errors.As(err, &e) {
		return e.fault
	}
	return engine.FaultNone
}

// open is the number of transactions whose connection was not given back.
func (b *fakeBackend) open() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := 0
	for _, tx := range b.txs {
		if !tx.closed {
			n++
		}
	}
	return n
}

// requireEnds asks how the one transaction was ended.
func (b *fakeBackend) requireEnds(t *testing.T, ends ...string) {
	t.Helper()
	require.Len(t, b.txs, 1)
	require.Equal(t, ends, b.txs[0].ends)
	require.Zero(t, b.open())
}

type handle struct{ number int }

type fakeTx struct {
	backend *fakeBackend
	scope   *engine.Scope
	record  *engine.Record
	ends    []string
	closed  bool
}

func (t *fakeTx) Scope() *engine.Scope { return t.scope }

func (t *fakeTx) Commit(ctx context.Context, record *engine.Record) error {
	t.ends, t.record = append(t.ends, "commit"), record
	answer := t.backend.commit
	if answer == nil {
		answer = t.backend.end
	}
	var err error
	if answer != nil {
		err = answer(ctx)
	}
	t.closed = err == nil
	return err
}

func (t *fakeTx) Rollback(ctx context.Context) error {
	t.ends, t.closed = append(t.ends, "rollback"), true
	if t.backend.end != nil {
		return t.backend.end(ctx)
	}
	return nil
}
