package tests

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/businesskey"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox"
)

// queueSteps are the cases about steps and idempotency keys.
func (s *suite) queueSteps() []testCase {
	return []testCase{
		{"E1_StepRunsOnceOverAttempts", s.steps},
		{"E1_StepFirstStoredWins", s.stepFirst},
		{"E1_StepIsFenced", s.stepFenced},
		{"E1_StepOutsideItsPlace", s.stepMisplaced},
		{"E1_StepHoldsNoHeartbeatUp", s.stepHeartbeat},
		{"E1_IdempotencyKey", s.idempotencyKeys},
	}
}

// steps runs two steps over three attempts.
func (s *suite) steps(t *testing.T) {
	r := s.rig(t, Options{}, inbox.Config{})
	var calls starts
	all := strings.Repeat("\x00\xff\n", 10000)
	r.store(t, newMessage("pay"))
	r.work(t, workerConfig{}, func(msg *message.Message) ([]*message.Message, error) {
		ctx := msg.Context()
		receipt, err := inbox.Step(ctx, "charge", func(context.Context) (map[string]int, error) {
			return map[string]int{"receipt": calls.add("charge")}, nil
		})
		if err != nil {
			return nil, err
		}
		require.Equal(t, map[string]int{"receipt": 1}, receipt)
		got, err := inbox.StepBytes(ctx, "bytes", func(context.Context) ([]byte, error) {
			if calls.add("bytes") == 1 {
				return nil, errHandler // a step that fails is not stored
			}
			return []byte(all), nil
		})
		if err != nil {
			return nil, err
		}
		require.Equal(t, all, string(got))
		empty, err := inbox.StepBytes(ctx, "empty é", func(context.Context) ([]byte, error) { calls.add("empty"); return nil, nil })
		if err != nil {
			return nil, err
		}
		require.Empty(t, empty)
		if attempt(msg) < 3 {
			return nil, errHandler
		}
		return nil, r.Write(ctx, "pay")
	})
	r.finished(t, "pay", 1)
	require.Equal(t, map[string]int{"charge": 1, "bytes": 2, "empty": 1}, calls.all())
}

// stepFirst runs one step twice at once: both get the result that was stored first.
func (s *suite) stepFirst(t *testing.T) {
	r := s.rig(t, Options{}, inbox.Config{})
	r.store(t, newMessage("pay"))
	var results [2]int
	r.work(t, workerConfig{}, func(msg *message.Message) ([]*message.Message, error) {
		var wg, both sync.WaitGroup
		both.Add(2)
		var errs [2]error
		for i := range 2 {
			wg.Go(func() {
				results[i], errs[i] = inbox.Step(msg.Context(), "charge", func(context.Context) (int, error) {
					both.Done()
					both.Wait()
					return i + 1, nil
				})
			})
		}
		wg.Wait()
		for _, err := range errs {
			if err != nil {
				return nil, err
			}
		}
		return nil, r.Write(msg.Context(), "pay")
	})
	r.finished(t, "pay", 1)
	require.Equal(t, results[0], results[1])
	require.NotZero(t, results[0])
}

// stepFenced has an attempt that loses its lease before a step, and inside one.
func (s *suite) stepFenced(t *testing.T) {
	r := s.rig(t, Options{}, inbox.Config{})
	r.store(t, newMessage("pay"))
	entered, goOn := make(chan struct{}), make(chan struct{})
	lost := make(chan error, 2)
	handler := func(msg *message.Message) ([]*message.Message, error) {
		ctx := msg.Context()
		if attempt(msg) > 1 {
			got, err := inbox.Step(ctx, "charge", func(context.Context) (string, error) { return "second", nil })
			if err != nil {
				return nil, err
			}
			close(goOn)
			for range 2 {
				require.ErrorIs(t, <-lost, inbox.ErrLeaseLost)
			}
			return nil, r.Write(ctx, got)
		}
		_, err := inbox.Step(ctx, "charge", func(context.Context) (string, error) {
			close(entered)
			<-goOn
			return "first", nil
		})
		lost <- err
		_, err = inbox.Step(ctx, "mail", func(context.Context) (string, error) {
			t.Error("a step without a lease")
			return "", nil
		})
		lost <- err
		return nil, err
	}
	for range 2 {
		r.work(t, workerConfig{SubscriberConfig: sqlinbox.SubscriberConfig{Concurrency: 1}}, handler)
	}
	await(t, entered, "the step")
	r.expire(t)
	r.finished(t, "second", 1)
}

func (s *suite) stepMisplaced(t *testing.T) {
	r := s.rig(t, Options{}, inbox.Config{})
	step := func(ctx context.Context, name string) error {
		_, err := inbox.Step(ctx, name, func(context.Context) (int, error) { return 1, nil })
		return err
	}
	require.ErrorIs(t, step(t.Context(), "charge"), inbox.ErrNotLeased)
	_, err := inbox.IdempotencyKey(t.Context(), "charge")
	require.ErrorIs(t, err, inbox.ErrNotLeased)
	require.ErrorIs(t, r.handle(newMessage("inline"), func(msg *message.Message) ([]*message.Message, error) {
		return nil, step(msg.Context(), "charge")
	}), inbox.ErrNotLeased)

	errs := make(chan error, 3)
	r.store(t, newMessage("pay"))
	r.work(t, workerConfig{}, func(msg *message.Message) ([]*message.Message, error) {
		errs <- step(msg.Context(), "")
		errs <- step(msg.Context(), strings.Repeat("x", 101))
		err := r.Write(msg.Context(), "pay")
		errs <- step(msg.Context(), "charge")
		return nil, err
	})
	r.finished(t, "pay", 1)
	require.Error(t, <-errs)
	require.Error(t, <-errs)
	require.ErrorIs(t, <-errs, inbox.ErrTxOpen)
}

// stepHeartbeat locks the row for a while, as a step or an operator does, when the heartbeat comes: the lease is not lost.
func (s *suite) stepHeartbeat(t *testing.T) {
	r := s.rig(t, Options{}, inbox.Config{})
	r.store(t, newMessage("pay"))
	entered := make(chan struct{})
	var calls atomic.Int32
	r.work(t, workerConfig{SubscriberConfig: sqlinbox.SubscriberConfig{LeaseTime: 1500 * time.Millisecond}}, func(msg *message.Message) ([]*message.Message, error) {
		if calls.Add(1) == 1 {
			close(entered)
		}
		select {
		case <-time.After(2 * time.Second):
		case <-msg.Context().Done():
			return nil, context.Cause(msg.Context())
		}
		return nil, r.Write(msg.Context(), "pay")
	})
	await(t, entered, "the handler")
	tx, err := r.DB.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	_, err = tx.ExecContext(t.Context(), "UPDATE "+r.table("_queue")+" SET last_error = 'looked at'")
	require.NoError(t, err)
	time.Sleep(700 * time.Millisecond) // over one heartbeat
	require.NoError(t, tx.Commit())
	r.finished(t, "pay", 1)
	require.EqualValues(t, 1, calls.Load())
}

// idempotencyKeys asks for keys in several attempts, messages and operations.
func (s *suite) idempotencyKeys(t *testing.T) {
	r := s.rig(t, Options{}, inbox.Config{})
	keys, err := businesskey.New(r.Store.(inbox.OperationStore), businesskey.Config{Missing: businesskey.PassThrough})
	require.NoError(t, err)
	var mu sync.Mutex
	got := map[string]map[string]bool{}
	r.work(t, workerConfig{inner: []message.HandlerMiddleware{keys.Middleware}}, func(msg *message.Message) ([]*message.Message, error) {
		for _, label := range []string{"charge", "mail"} {
			key, err := inbox.IdempotencyKey(msg.Context(), label)
			if err != nil {
				return nil, err
			}
			name := msg.UUID
			if op, ok := inbox.OperationFromContext(msg.Context()); ok {
				name = op.ID
			}
			mu.Lock()
			if got[name+label] == nil {
				got[name+label] = map[string]bool{}
			}
			got[name+label][key] = true
			mu.Unlock()
		}
		if attempt(msg) < 3 {
			return nil, errHandler
		}
		return nil, r.Write(msg.Context(), "pay")
	})
	operation := newMessage("order")
	operation.Metadata.Set("operation_id", "order-42")
	r.store(t, newMessage("a"), newMessage("b"), operation)
	r.drained(t)
	require.Equal(t, 3, r.Count(t, "pay"))
	require.Len(t, got, 6)
	different := map[string]bool{}
	for _, keys := range got {
		require.Len(t, keys, 1, "the same in every attempt")
		for key := range keys {
			require.Regexp(t, `^[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`, key)
			different[key] = true
		}
	}
	require.Len(t, different, 6)
}
