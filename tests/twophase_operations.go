package tests

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/businesskey"
	"github.com/watermill-contrib/watermill-inbox/inboxtest"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox"
)

// queueOperations are the cases about business keys of queued messages.
func (s *suite) queueOperations() []testCase {
	return []testCase{
		{"F5_KilledInTheProvidersCall", s.f5("called", true)},
		{"F5_KilledAfterTheStep", s.f5("stepped", false)},
		{"F5_StepOutlivesADeadMessage", s.f5Step},
		{"F5_ManyMessagesOfOneOperation", s.f5Many},
		{"F5_OtherAmountOfAQueuedOperation", s.f5Mismatch},
		{"F5_OperationOfADeadMessage", s.f5Freed("dead")},
		{"F5_OperationOfAKilledMessage", s.f5Freed("killed")},
		{"F5_OperationOfAShutDownWorker", s.f5Freed("shutdown")},
		{"F5_OwnedIsBusyInline", s.f5Inline},
		{"F7_CrossedOperationsInTheQueue", s.f7Queue},
	}
}

const queueProviderTask = "charge from the queue and die"

// chargeLog is what a provider knows: a line for each call, in a file that outlives processes.
type chargeLog struct{ path string }

func (l chargeLog) call(key string) error {
	file, err := os.OpenFile(l.path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = file.WriteString(key + "\n")
	if closeErr := file.Close(); err == nil {
		err = closeErr
	}
	return err
}

// charges counts what the provider did: it merges calls with equal keys, or not.
func (l chargeLog) charges(t *testing.T, merges bool) int {
	t.Helper()
	content, err := os.ReadFile(l.path)
	require.NoError(t, err)
	calls := strings.Fields(string(content))
	if !merges {
		return len(calls)
	}
	different := map[string]bool{}
	for _, call := range calls {
		different[call] = true
	}
	return len(different)
}

// charging is a handler that calls the provider in a step, and passes points at which it may be killed.
func (r *rig) charging(provider chargeLog) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		key, err := inbox.IdempotencyKey(msg.Context(), "charge")
		if err != nil {
			return nil, err
		}
		if _, err := inbox.Step(msg.Context(), "charge", func(context.Context) (string, error) {
			if err := provider.call(key); err != nil {
				return "", err
			}
			inboxtest.Point("called")
			return "receipt", nil
		}); err != nil {
			return nil, err
		}
		inboxtest.Point("stepped")
		return nil, r.Write(msg.Context(), "pay")
	}
}

func operationMessage(payload string) *message.Message {
	msg := newMessage(payload)
	msg.Metadata.Set("operation_id", "order-42")
	return msg
}

func (r *rig) operationWorker(t testing.TB, c workerConfig, handler message.HandlerFunc) *queueWorker {
	t.Helper()
	keys, err := businesskey.New(r.Store.(inbox.OperationStore), businesskey.Config{})
	require.NoError(t, err)
	c.inner = append(c.inner, keys.Middleware)
	return r.work(t, c, handler)
}

// chargeAndDie is the child of f5.
func (s *suite) chargeAndDie(t *testing.T, this task) {
	r := s.rig(t, Options{Space: this.Space, DSN: this.DSN}, inbox.Config{})
	one := sqlinbox.SubscriberConfig{LeaseTime: time.Second, Concurrency: 1}
	r.operationWorker(t, workerConfig{SubscriberConfig: one}, r.charging(chargeLog{this.Args["log"]}))
	r.drained(t)
}

// f5 has two messages of one operation; the worker of the first is killed at a point.
func (s *suite) f5(point string, merges bool) func(*testing.T) {
	return func(t *testing.T) {
		r := s.rig(t, Options{}, inbox.Config{})
		provider := chargeLog{t.TempDir() + "/charges"}
		r.store(t, operationMessage("pay 10"))
		child := s.startChild(t, r.Env, task{Name: queueProviderTask, Args: map[string]string{"log": provider.path}}, point)
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		require.NoError(t, child.WaitPoint(ctx))
		r.store(t, operationMessage("pay 10"))
		lease := sqlinbox.SubscriberConfig{LeaseTime: time.Second}
		r.operationWorker(t, workerConfig{SubscriberConfig: lease}, r.charging(provider))
		require.NoError(t, child.Kill())
		r.finished(t, "pay", 2)
		require.Equal(t, 1, provider.charges(t, merges))
	}
}

// f5Step has a message that dies after its step was stored: the step is the operation's, and the next message's too.
func (s *suite) f5Step(t *testing.T) {
	r := s.rig(t, Options{}, inbox.Config{})
	provider := chargeLog{t.TempDir() + "/charges"}
	charge := r.charging(provider)
	var calls starts
	r.operationWorker(t, workerConfig{SubscriberConfig: sqlinbox.SubscriberConfig{MaxAttempts: 1}}, func(msg *message.Message) ([]*message.Message, error) {
		if _, err := charge(msg); err != nil || calls.add("all") == 1 {
			return nil, errHandler
		}
		return nil, nil
	})
	first, second := operationMessage("pay 10"), operationMessage("pay 10")
	r.store(t, first)
	r.inState(t, first.UUID, sqlinbox.QueueDead)
	r.store(t, second)
	require.Eventually(t, func() bool { return r.queued(t) == 1 }, patience, 5*time.Millisecond)
	require.Equal(t, 1, provider.charges(t, false))
	require.Equal(t, 1, r.Count(t, "pay"))
	require.Equal(t, 0, r.scalar(t, "SELECT count(*) FROM "+r.table("_steps")), "the operation has its result")
}

// f5Many has many messages of one operation on two workers: one runs the handler, all are handled.
func (s *suite) f5Many(t *testing.T) {
	r := s.rig(t, Options{}, inbox.Config{})
	provider := chargeLog{t.TempDir() + "/charges"}
	for range 12 {
		r.store(t, operationMessage("pay 10"))
	}
	for range 2 {
		r.operationWorker(t, workerConfig{SubscriberConfig: sqlinbox.SubscriberConfig{MaxAttempts: 1}}, r.charging(provider))
	}
	r.finished(t, "pay", 12)
	require.Equal(t, 1, provider.charges(t, false))
}

func (s *suite) f5Mismatch(t *testing.T) {
	r := s.rig(t, Options{}, inbox.Config{})
	r.store(t, operationMessage("pay 10"))
	r.operationWorker(t, workerConfig{}, r.writes("pay"))
	r.finished(t, "pay", 1)
	wrong := operationMessage("pay 20")
	r.store(t, wrong)
	dead := r.inState(t, wrong.UUID, sqlinbox.QueueDead)
	require.Equal(t, 1, dead.Attempts)
	require.Contains(t, dead.LastError, inbox.ErrMismatch.Error())
	require.Equal(t, 1, r.Count(t, "pay"))
}

// f5Freed has a message that ends without a result: its operation is free for another one.
func (s *suite) f5Freed(end string) func(*testing.T) {
	return func(t *testing.T) {
		r := s.rig(t, Options{}, inbox.Config{})
		first := operationMessage("pay 10")
		r.store(t, first)
		entered, goOn := make(chan struct{}), make(chan struct{})
		w := r.operationWorker(t, workerConfig{SubscriberConfig: sqlinbox.SubscriberConfig{MaxAttempts: 1}}, func(msg *message.Message) ([]*message.Message, error) {
			close(entered)
			select {
			case <-goOn:
			case <-msg.Context().Done():
			}
			return nil, errHandler
		})
		await(t, entered, "the handler")
		row, _ := r.row(t, first.UUID)
		if end == "killed" {
			_, err := r.queueStore(t).Kill(context.Background(), row.Seq)
			require.NoError(t, err)
		}
		if end != "shutdown" {
			close(goOn)
			if end == "dead" {
				r.inState(t, first.UUID, sqlinbox.QueueDead)
			}
		}
		require.NoError(t, w.Close())
		require.Equal(t, 0, r.scalar(t, "SELECT count(*) FROM "+r.table("_operations")), "nobody owns it")

		// An inline message may ask for it.
		keys, err := businesskey.New(r.Store.(inbox.OperationStore), businesskey.Config{})
		require.NoError(t, err)
		again := operationMessage("pay 10")
		require.NoError(t, r.handleWithin(t, again, keys.Middleware(r.writes("pay"))))
		require.Equal(t, 1, r.Count(t, "pay"))
	}
}

// f5Inline asks for an operation inline, and by a call, that a queued message has in hand: busy, then done.
func (s *suite) f5Inline(t *testing.T) {
	r := s.rig(t, Options{Config: sqlinbox.Config{InFlightWait: 100 * time.Millisecond}}, inbox.Config{})
	entered, goOn := make(chan struct{}), make(chan struct{})
	r.operationWorker(t, workerConfig{}, func(msg *message.Message) ([]*message.Message, error) {
		close(entered)
		<-goOn
		return nil, r.Write(msg.Context(), "pay")
	})
	r.store(t, operationMessage("pay 10"))
	await(t, entered, "the handler")
	keys, err := businesskey.New(r.Store.(inbox.OperationStore), businesskey.Config{})
	require.NoError(t, err)
	inline := operationMessage("pay 10")
	require.ErrorIs(t, r.handleWithin(t, inline.Copy(), keys.Middleware(r.writes("inline"))), inbox.ErrInFlight)
	within(t, patience, "the call", func() {
		_, err = keys.Do(context.Background(), businesskey.Operation{Scope: consumer, ID: "order-42"}, func(context.Context) ([]byte, error) { return nil, nil })
	})
	require.ErrorIs(t, err, inbox.ErrInFlight)
	close(goOn)
	r.drained(t)
	require.NoError(t, r.handleWithin(t, inline.Copy(), keys.Middleware(r.writes("inline"))))
	require.Equal(t, 0, r.Count(t, "inline"))
	require.Equal(t, 1, r.Count(t, "pay"))
}

// f7Queue has handlers that ask for operations X, Y and Y, X.
func (s *suite) f7Queue(t *testing.T) {
	r := s.rig(t, Options{}, inbox.Config{})
	keys, err := businesskey.New(r.Store.(inbox.OperationStore), businesskey.Config{})
	require.NoError(t, err)
	rounds := Scale(1000, 20)
	var effects sync.Map
	for range 2 {
		r.work(t, workerConfig{SubscriberConfig: sqlinbox.SubscriberConfig{MaxAttempts: 1, Concurrency: 4}}, func(msg *message.Message) ([]*message.Message, error) {
			done := []string{}
			for _, id := range strings.Split(string(msg.Payload), ",") {
				if _, err := keys.Do(msg.Context(), businesskey.Operation{ID: id}, func(context.Context) ([]byte, error) {
					done = append(done, id)
					time.Sleep(time.Millisecond)
					return nil, nil
				}); err != nil {
					return nil, err
				}
			}
			effects.Store(msg.UUID, true)
			for _, id := range done {
				if err := r.Write(msg.Context(), id); err != nil {
					return nil, err
				}
			}
			return nil, nil
		})
	}
	for n := range rounds {
		x, y := fmt.Sprint("X", n), fmt.Sprint("Y", n)
		r.store(t, newMessage(x+","+y), newMessage(y+","+x))
	}
	r.drained(t)
	require.Equal(t, 2*rounds, r.Total(t))
	require.Equal(t, 2*rounds, r.scalar(t, "SELECT count(DISTINCT name) FROM "+r.Effects))
}
