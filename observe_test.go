package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	inbox "github.com/watermill-contrib/watermill-inbox"
)

func TestEveryOutcomeIsObservedOnce(t *testing.T) {
	t.Parallel()
	ctx := routed(t, "charge", "orders")
	own := errors.New("mine")
	answer := func(result inbox.Result, err error) func(*fakeStore) {
		return func(s *fakeStore) {
			s.answer = func(d inbox.Delivery) (inbox.Result, error) {
				if err != nil {
					return result, &inbox.Error{Phase: inbox.PhaseClaim, Key: d.Key, Handler: d.Handler, Err: err}
				}
				return result, nil
			}
		}
	}
	fail := func(err error) func(*message.Message) error { return func(*message.Message) error { return err } }
	ackThen := func(end func() error) func(*message.Message) error {
		return func(msg *message.Message) error { msg.Ack(); return end() }
	}
	for _, tt := range []struct {
		name    string
		store   func(*fakeStore)
		handler func(*message.Message) error
		acked   bool // before it arrives, as InstantAck does it
		want    inbox.Outcome
		err     error
	}{
		{name: "processed", want: inbox.OutcomeProcessed},
		{name: "duplicate", store: (*fakeStore).rememberAll, want: inbox.OutcomeDuplicate},
		{name: "duplicate acked early", store: (*fakeStore).rememberAll, acked: true, want: inbox.OutcomeDuplicate},
		{name: "queued", store: answer(inbox.Result{Outcome: inbox.OutcomeQueued}, nil), want: inbox.OutcomeQueued},
		{name: "queued acked early", store: answer(inbox.Result{Outcome: inbox.OutcomeQueued}, nil), acked: true, want: inbox.OutcomeQueued},
		{name: "mismatch reported", store: answer(inbox.Result{Outcome: inbox.OutcomeDuplicate, Mismatch: true}, nil), want: inbox.OutcomeMismatch},
		{name: "mismatch refused", store: answer(inbox.Result{}, inbox.ErrMismatch), want: inbox.OutcomeMismatch, err: inbox.ErrMismatch},
		{name: "late", store: answer(inbox.Result{}, inbox.ErrLate), want: inbox.OutcomeLate, err: inbox.ErrLate},
		{name: "collision", store: answer(inbox.Result{}, inbox.ErrKeyCollision), want: inbox.OutcomeCollision, err: inbox.ErrKeyCollision},
		{name: "in flight", store: answer(inbox.Result{}, inbox.ErrInFlight), want: inbox.OutcomeInFlight, err: inbox.ErrInFlight},
		{name: "in flight acked early", store: answer(inbox.Result{}, inbox.ErrInFlight), acked: true, want: inbox.OutcomeInFlight, err: inbox.ErrInFlight},
		{name: "database down", store: answer(inbox.Result{}, inbox.ErrUnavailable), want: inbox.OutcomeFailed, err: inbox.ErrUnavailable},
		{name: "database down after an early ack", store: answer(inbox.Result{}, inbox.ErrUnavailable), acked: true, want: inbox.OutcomeLost, err: inbox.ErrUnavailable},
		{name: "mismatch after an early ack", store: answer(inbox.Result{}, inbox.ErrMismatch), acked: true, want: inbox.OutcomeLost, err: inbox.ErrMismatch},
		{name: "failed", handler: fail(own), want: inbox.OutcomeFailed, err: own},
		{name: "failed commit", store: func(s *fakeStore) { s.commit = func() (bool, error) { return false, own } }, want: inbox.OutcomeFailed, err: own},
		{name: "panicked", handler: func(*message.Message) error { panic("mine") }, want: inbox.OutcomePanicked},
		{name: "Goexit", handler: func(*message.Message) error { runtime.Goexit(); return nil }, want: inbox.OutcomePanicked},
		{name: "acked early", handler: ackThen(func() error { return nil }), want: inbox.OutcomeAckedEarly},
		{name: "InstantAck", acked: true, want: inbox.OutcomeAckedEarly},
		{name: "lost", handler: ackThen(func() error { return own }), want: inbox.OutcomeLost, err: own},
		{name: "lost at commit", handler: ackThen(func() error { return nil }), store: func(s *fakeStore) { s.commit = func() (bool, error) { return false, own } }, want: inbox.OutcomeLost, err: own},
		{name: "lost by panic", handler: ackThen(func() error { panic("mine") }), want: inbox.OutcomeLost},
		{name: "lost by Goexit", handler: ackThen(func() error { runtime.Goexit(); return nil }), want: inbox.OutcomeLost},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			store, seen := newFakeStore(), &events{}
			if tt.store != nil {
				tt.store(store)
			}
			var observed context.Context
			in := mustNew(t, store, inbox.Config{Observer: func(ctx context.Context, e inbox.Event) {
				observed = ctx
				seen.observe(ctx, e)
			}})
			msg := message.NewMessageWithContext(ctx, "42", nil)
			if tt.acked {
				msg.Ack()
			}
			var err error
			apart(func() {
				_, err = in.Middleware(func(msg *message.Message) ([]*message.Message, error) {
					require.Empty(t, seen.all(), "told before the fact")
					if tt.handler == nil {
						return nil, nil
					}
					return nil, tt.handler(msg)
				})(msg)
			})
			e := seen.only(t)
			require.Equal(t, tt.want, e.Outcome)
			require.Equal(t, inbox.Key{Consumer: "charge", ID: "42"}, e.Key)
			require.Equal(t, "charge", e.Handler)
			require.Equal(t, "orders", e.Topic)
			require.Positive(t, e.Duration)
			require.Equal(t, ctx, observed, "the Observer finds the message's own context")
			require.Equal(t, err, e.Err)
			require.ErrorIs(t, e.Err, tt.err)
			if tt.err != nil {
				var typed *inbox.Error
				require.ErrorAs(t, err, &typed)
				require.Equal(t, e.Key, typed.Key)
			}
		})
	}
}

// An Observer that panics against the rules is not told again.
func TestAPanickingObserverIsToldOnce(t *testing.T) {
	t.Parallel()
	calls := 0
	in := mustNew(t, newFakeStore(), inbox.Config{Observer: func(context.Context, inbox.Event) { calls++; panic("observer") }})
	require.Equal(t, "observer", apart(func() { _, _ = in.As("c")(nothing)(message.NewMessage("42", nil)) }))
	require.Equal(t, 1, calls)
}

func TestEventCarriesWhatTheStoreMeasured(t *testing.T) {
	t.Parallel()
	for name, err := range map[string]error{"processed": nil, "failed": inbox.ErrSerialization} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store, seen := newFakeStore(), &events{}
			store.answer = func(inbox.Delivery) (inbox.Result, error) {
				return inbox.Result{Outcome: inbox.OutcomeProcessed, TxRetries: 2, Wait: 3 * time.Second}, err
			}
			_, got := mustNew(t, store, inbox.Config{Observer: seen.observe}).As("c")(nothing)(message.NewMessage("42", nil))
			require.ErrorIs(t, got, err)
			require.Equal(t, 2, seen.only(t).TxRetries)
			require.Equal(t, 3*time.Second, seen.only(t).Wait)
		})
	}
}

func TestAckedEarlyIsAnErrorLineOncePerHandler(t *testing.T) {
	t.Parallel()
	logger, seen := watermill.NewCaptureLogger(), &events{}
	store := newFakeStore()
	in := mustNew(t, store, inbox.Config{Logger: logger, Observer: seen.observe})
	for _, name := range []string{"charge", "refund"} {
		ctx := routed(t, name, "orders")
		for _, id := range []string{"1", "2", "3"} {
			_, err := in.Middleware(func(msg *message.Message) ([]*message.Message, error) {
				msg.Ack()
				return nil, nil
			})(message.NewMessageWithContext(ctx, id, nil))
			require.NoError(t, err)
		}
	}
	require.Len(t, store.keys(), 6, "the work is committed")
	require.Equal(t, slices.Repeat([]inbox.Outcome{inbox.OutcomeAckedEarly}, 6), seen.outcomes(), "each one is counted")
	lines := logged(logger, watermill.ErrorLogLevel)
	require.Len(t, lines, 2)
	for i, name := range []string{"charge", "refund"} {
		require.Equal(t, name, lines[i].Fields["handler_name"])
		require.Contains(t, lines[i].Msg, "Remove InstantAck or the handler's msg.Ack()")
		require.Equal(t, "1", lines[i].Fields["message_id"])
	}
}

func TestLostMessagesAreErrorLinesEach(t *testing.T) {
	t.Parallel()
	logger := watermill.NewCaptureLogger()
	store := newFakeStore()
	in := mustNew(t, store, inbox.Config{Logger: logger})
	own := errors.New("mine")
	for _, id := range []string{"1", "2"} {
		_, err := in.As("c")(func(msg *message.Message) ([]*message.Message, error) {
			msg.Ack()
			return nil, own
		})(message.NewMessage(id, []byte("secret")))
		require.ErrorIs(t, err, own)
	}
	apart(func() {
		_, _ = in.As("c")(func(msg *message.Message) ([]*message.Message, error) { msg.Ack(); panic("mine") })(message.NewMessage("3", []byte("secret")))
	})
	require.Empty(t, store.keys(), "rolled back")
	lines := logged(logger, watermill.ErrorLogLevel)
	require.Len(t, lines, 3)
	for i, line := range lines {
		require.Contains(t, line.Msg, "lost")
		require.Contains(t, line.Msg, "Remove InstantAck or the handler's msg.Ack()")
		require.Equal(t, fmt.Sprint(i+1), line.Fields["message_id"])
		require.Equal(t, "c", line.Fields["consumer"])
		require.NotContains(t, fmt.Sprint(line), "secret", "payloads are never logged")
	}
	require.ErrorIs(t, lines[0].Err, own)
}

func TestAnUnusedTransactionIsWarnedOfOncePerHandler(t *testing.T) {
	t.Parallel()
	logger, seen := watermill.NewCaptureLogger(), &events{}
	store := newFakeStore()
	store.unused = true
	in := mustNew(t, store, inbox.Config{Logger: logger, Observer: seen.observe})
	for _, name := range []string{"charge", "refund"} {
		ctx := routed(t, name, "orders")
		for _, id := range []string{"1", "2", "3"} {
			_, err := in.Middleware(nothing)(message.NewMessageWithContext(ctx, id, nil))
			require.NoError(t, err)
		}
	}
	lines := logged(logger, watermill.InfoLogLevel)
	require.Len(t, lines, 2)
	require.Equal(t, "charge", lines[0].Fields["handler_name"])
	require.Equal(t, "refund", lines[1].Fields["handler_name"])
	require.Contains(t, lines[0].Msg, "TxFromContext")
	require.Empty(t, logged(logger, watermill.ErrorLogLevel))
	for _, e := range seen.all() {
		require.Equal(t, inbox.OutcomeProcessed, e.Outcome)
		require.True(t, e.TxUnused)
	}
}

func TestMismatchPolicies(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		policy inbox.MismatchPolicy
		want   error
	}{
		{"", inbox.ErrMismatch},
		{inbox.MismatchReject, inbox.ErrMismatch},
		{inbox.MismatchReport, nil},
	} {
		t.Run("policy "+string(tt.policy), func(t *testing.T) {
			t.Parallel()
			logger, seen := watermill.NewCaptureLogger(), &events{}
			store := newFakeStore()
			in := mustNew(t, store, inbox.Config{Mismatch: tt.policy, Logger: logger, Observer: seen.observe})
			ran := 0
			mw := in.As("c")(func(*message.Message) ([]*message.Message, error) { ran++; return nil, nil })
			_, err := mw(message.NewMessage("42", []byte("10")))
			require.NoError(t, err)
			for range 3 {
				_, err := mw(message.NewMessage("42", []byte("20")))
				require.ErrorIs(t, err, tt.want)
				require.Equal(t, tt.want != nil, inbox.IsPermanent(err))
			}
			_, err = mw(message.NewMessage("42", []byte("10")))
			require.NoError(t, err, "the right content is a duplicate afterwards")
			require.Equal(t, 1, ran)
			require.Equal(t, []inbox.Outcome{
				inbox.OutcomeProcessed, inbox.OutcomeMismatch, inbox.OutcomeMismatch, inbox.OutcomeMismatch, inbox.OutcomeDuplicate,
			}, seen.outcomes())
			warnings := logged(logger, watermill.InfoLogLevel)
			if tt.want != nil {
				require.Empty(t, warnings, "returned, so not logged as well")
				return
			}
			require.Len(t, warnings, 1)
			require.Contains(t, warnings[0].Msg, "MismatchReport")
		})
	}
}

func TestAnEndedContextIsPartOfTheError(t *testing.T) {
	t.Parallel()
	own := errors.New("sql: transaction has already been committed or rolled back")
	mw := func(end func() error) message.HandlerFunc {
		return mustNew(t, newFakeStore(), inbox.Config{}).As("c")(func(*message.Message) ([]*message.Message, error) { return nil, end() })
	}

	t.Run("cancelled", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithCancel(t.Context())
		_, err := mw(func() error { cancel(); return own })(message.NewMessageWithContext(ctx, "42", nil))
		require.ErrorIs(t, err, own)
		require.ErrorIs(t, err, context.Canceled, "the router logs it quietly")
		require.True(t, inbox.IsTransient(err))
		requirePhase(t, inbox.PhaseHandle, err)
	})
	t.Run("deadline", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
		defer cancel()
		_, err := mw(func() error { return own })(message.NewMessageWithContext(ctx, "42", nil))
		require.ErrorIs(t, err, own)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NotErrorIs(t, err, context.Canceled)
	})
	t.Run("said already", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithCancel(t.Context())
		_, err := mw(func() error { cancel(); return fmt.Errorf("query: %w", ctx.Err()) })(message.NewMessageWithContext(ctx, "42", nil))
		require.EqualError(t, err, "inbox: handle c/42: query: context canceled")
	})
	t.Run("a refused message", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := mw(func() error { return nil })(message.NewMessageWithContext(ctx, "", nil))
		require.ErrorIs(t, err, inbox.ErrNoMessageID)
		require.ErrorIs(t, err, context.Canceled)
		require.True(t, inbox.IsPermanent(err))
		require.False(t, inbox.IsTransient(err))
	})
	t.Run("alive", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		_, err := mw(func() error { return own })(message.NewMessageWithContext(ctx, "42", nil))
		require.NotErrorIs(t, err, context.Canceled)
	})
	t.Run("after success", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithCancel(t.Context())
		_, err := mw(func() error { cancel(); return nil })(message.NewMessageWithContext(ctx, "42", nil))
		require.NoError(t, err, "what is committed is committed")
	})
}

// The copies' ERROR lines are what operators of other libraries complain about.
func TestAThousandDuplicatesAreQuiet(t *testing.T) {
	t.Parallel()
	logger, seen := watermill.NewCaptureLogger(), &events{}
	in := mustNew(t, newFakeStore(), inbox.Config{Logger: logger, Observer: seen.observe})
	var ran atomic.Int32
	handler := in.As("c")(func(*message.Message) ([]*message.Message, error) { ran.Add(1); return nil, nil })
	_, err := handler(message.NewMessage("42", nil))
	require.NoError(t, err)
	var wg sync.WaitGroup
	errs := make([]error, 1000)
	for i := range errs {
		wg.Go(func() { _, errs[i] = handler(message.NewMessage("42", nil)) })
	}
	wg.Wait()
	require.NoError(t, errors.Join(errs...))
	require.EqualValues(t, 1, ran.Load())
	duplicates := 0
	for _, outcome := range seen.outcomes() {
		if outcome == inbox.OutcomeDuplicate {
			duplicates++
		}
	}
	require.Equal(t, 1000, duplicates)
	require.Len(t, logger.Captured(), 1, "of one level only")
	require.Len(t, logged(logger, watermill.DebugLogLevel), 1000)
}
