package tests

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/stretchr/testify/require"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox"
)

// queueEnds are the cases about the ends of queued messages.
func (s *suite) queueEnds() []testCase {
	return []testCase{
		{"E5_OnePoisonMessage", s.e5},
		{"E5_PermanentErrorIsDeadAtOnce", s.e5Permanent},
		{"E5_LongReasonIsCut", s.e5Reason},
		{"E5_OnDeadTakesPart", s.e5OnDead},
		{"E5_PoisonQueueAndRetryLetItPass", s.e5Unleased},
		{"E5_AckAfterAFailedAttempt", s.e5Acked},
		{"E10_KilledWhileTheHandlerRuns", s.e10},
		{"E10_AckOfARowThatIsGone", s.e10Bare},
		{"E12_RequeuedTwice", s.e12},
		{"E8_AckWithoutTheMiddleware", s.ackBare},
		{"B9_AckInTheHandlerOfAQueuedMessage", s.b9Queued},
	}
}

// e5 has a poison message in front of good ones.
func (s *suite) e5(t *testing.T) {
	r := s.rig(t, Options{}, inbox.Config{})
	poisoned := newMessage("poison")
	r.store(t, poisoned)
	r.storeMany(t, 100, "pay")
	w := r.work(t, workerConfig{SubscriberConfig: sqlinbox.SubscriberConfig{MaxAttempts: 3, Concurrency: 4}}, func(msg *message.Message) ([]*message.Message, error) {
		if string(msg.Payload) == "poison" {
			return nil, errHandler
		}
		return nil, r.Write(msg.Context(), "pay")
	})
	dead := r.inState(t, poisoned.UUID, sqlinbox.QueueDead)
	require.Equal(t, 3, dead.Attempts)
	require.Contains(t, dead.LastError, errHandler.Error())
	require.Eventually(t, func() bool { return r.queued(t) == 1 }, patience, 5*time.Millisecond)
	require.Equal(t, 100, r.Count(t, "pay"))
	require.Len(t, w.logs.at("ERROR"), 1+3, "one line for the dead one, the router's for its attempts")
}

func (s *suite) e5Permanent(t *testing.T) {
	r := s.rig(t, Options{}, inbox.Config{})
	msg := newMessage("pay")
	r.store(t, msg)
	var calls starts
	r.work(t, workerConfig{}, func(msg *message.Message) ([]*message.Message, error) {
		calls.add(msg.UUID)
		return nil, fmt.Errorf("order 42: %w", inbox.ErrMismatch)
	})
	dead := r.inState(t, msg.UUID, sqlinbox.QueueDead)
	require.Equal(t, 1, dead.Attempts)
	require.Equal(t, map[string]int{msg.UUID: 1}, calls.all())
	require.NoError(t, r.Intake(consumer)(msg.Copy()), "it is known")
	require.Equal(t, 1, r.queued(t))
}

// e5Reason has an error with a long text and odd bytes.
func (s *suite) e5Reason(t *testing.T) {
	r := s.rig(t, Options{}, inbox.Config{})
	msg := newMessage("pay")
	r.store(t, msg)
	r.work(t, workerConfig{SubscriberConfig: sqlinbox.SubscriberConfig{MaxAttempts: 1}}, func(*message.Message) ([]*message.Message, error) {
		return nil, fmt.Errorf("a\x00\xff\né %s", strings.Repeat("x", 10000))
	})
	dead := r.inState(t, msg.UUID, sqlinbox.QueueDead)
	require.Contains(t, dead.LastError, `a\x00\xff\x0a\xc3\xa9 xxx`)
	require.Less(t, len(dead.LastError), 3000)
}

// e5OnDead compensates in the transaction that marks a message as dead; while that fails the message waits.
func (s *suite) e5OnDead(t *testing.T) {
	r := s.rig(t, Options{}, inbox.Config{})
	msg := newMessage("pay")
	r.store(t, msg)
	var asked atomic.Int32
	var told atomic.Pointer[sqlinbox.Dead]
	r.work(t, workerConfig{SubscriberConfig: sqlinbox.SubscriberConfig{MaxAttempts: 2, OnDead: func(ctx context.Context, dead sqlinbox.Dead) error {
		told.Store(&dead)
		if err := r.Write(ctx, "refund"); err != nil {
			return err
		}
		switch asked.Add(1) {
		case 1:
			return errCompensation
		case 2:
			panic("index out of range")
		}
		return nil
	}}}, func(*message.Message) ([]*message.Message, error) { return nil, errHandler })
	dead := r.inState(t, msg.UUID, sqlinbox.QueueDead)
	require.Equal(t, 4, dead.Attempts)
	require.Equal(t, 1, r.Count(t, "refund"), "of the one that was committed")
	require.Equal(t, msg.UUID, told.Load().Key.ID)
	require.Equal(t, consumer, told.Load().Key.Consumer)
	require.Equal(t, "pay", string(told.Load().Message.Payload))
	require.Equal(t, 4, told.Load().Attempts)
	require.ErrorIs(t, told.Load().Cause, errHandler)
	r.requireIdle(t)
}

// e5Unleased wraps PoisonQueue and Retry, which leave queued messages to their row.
func (s *suite) e5Unleased(t *testing.T) {
	r := s.rig(t, Options{}, inbox.Config{})
	var poisoned poison
	queue, err := middleware.PoisonQueue(&poisoned, "poison")
	require.NoError(t, err)
	retry := middleware.Retry{MaxRetries: 5, InitialInterval: time.Millisecond}
	msg := newMessage("pay")
	r.store(t, msg)
	var calls starts
	w := r.work(t, workerConfig{
		SubscriberConfig: sqlinbox.SubscriberConfig{MaxAttempts: 2},
		outer:            []message.HandlerMiddleware{inbox.Unleased(queue), inbox.Unleased(retry.Middleware)},
	}, func(msg *message.Message) ([]*message.Message, error) {
		calls.add(msg.UUID)
		return nil, errHandler
	})
	r.inState(t, msg.UUID, sqlinbox.QueueDead)
	require.Equal(t, map[string]int{msg.UUID: 2}, calls.all())
	require.Empty(t, poisoned.all())
	require.NoError(t, w.Close())

	_, err = inbox.Unleased(queue)(func(*message.Message) ([]*message.Message, error) { return nil, errHandler })(newMessage("inline"))
	require.NoError(t, err)
	require.Len(t, poisoned.all(), 1, "for other messages they are what they were")
}

// e5Acked has a middleware that acks what failed: the row is not completed by that.
func (s *suite) e5Acked(t *testing.T) {
	r := s.rig(t, Options{}, inbox.Config{})
	swallow := func(next message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			_, _ = next(msg)
			return nil, nil
		}
	}
	r.store(t, newMessage("pay"))
	w := r.work(t, workerConfig{outer: []message.HandlerMiddleware{swallow}}, r.writesThen("pay", func(msg *message.Message) error {
		if attempt(msg) < 3 {
			return errHandler
		}
		return nil
	}))
	r.finished(t, "pay", 1)
	warnings := 0
	for _, line := range w.logs.at("INFO") {
		if strings.Contains(line.text, "acked after its attempt had failed") {
			warnings++
		}
	}
	require.Equal(t, 2, warnings)
}

// e10 kills a message that a handler has in hand: it loses it before its commit.
func (s *suite) e10(t *testing.T) {
	r := s.rig(t, Options{}, inbox.Config{})
	entered, goOn := make(chan struct{}), make(chan struct{})
	r.work(t, workerConfig{}, func(msg *message.Message) ([]*message.Message, error) {
		close(entered)
		<-goOn
		return nil, r.Write(msg.Context(), "pay")
	})
	msg := newMessage("pay")
	r.store(t, msg)
	await(t, entered, "the handler")
	row, there := r.row(t, msg.UUID)
	require.True(t, there)
	for _, want := range []bool{true, false} {
		killed, err := r.queueStore(t).Kill(context.Background(), row.Seq)
		require.NoError(t, err)
		require.Equal(t, want, killed)
	}
	close(goOn)
	require.Eventually(t, func() bool { return r.events.count(inbox.OutcomeFailed) == 1 }, patience, time.Millisecond)
	events := r.events.all()
	require.ErrorIs(t, events[len(events)-1].Err, inbox.ErrLeaseLost)
	require.Equal(t, 0, r.Total(t))
	require.NoError(t, r.handle(msg.Copy(), r.writes("pay")), "it counts as handled")
	require.Equal(t, 0, r.Total(t))
	r.requireIdle(t)
}

// e10Bare acks a message without the middleware whose row is gone by then: said as an error.
func (s *suite) e10Bare(t *testing.T) {
	r := s.rig(t, Options{}, inbox.Config{})
	entered, goOn := make(chan struct{}), make(chan struct{})
	w := r.work(t, workerConfig{bare: true}, func(*message.Message) ([]*message.Message, error) {
		close(entered)
		<-goOn
		return nil, nil
	})
	msg := newMessage("pay")
	r.store(t, msg)
	await(t, entered, "the handler")
	row, _ := r.row(t, msg.UUID)
	killed, err := r.queueStore(t).Kill(context.Background(), row.Seq)
	require.NoError(t, err)
	require.True(t, killed)
	close(goOn)
	require.Eventually(t, func() bool { return len(w.logs.at("ERROR")) == 1 }, patience, time.Millisecond)
	require.ErrorIs(t, w.logs.at("ERROR")[0].err, inbox.ErrLeaseLost)
}

// e12 requeues a dead message twice, at once and after it was handled.
func (s *suite) e12(t *testing.T) {
	r := s.rig(t, Options{}, inbox.Config{})
	msg := newMessage("pay")
	r.store(t, msg)
	var calls starts
	r.work(t, workerConfig{SubscriberConfig: sqlinbox.SubscriberConfig{MaxAttempts: 1}}, func(msg *message.Message) ([]*message.Message, error) {
		if calls.add(msg.UUID) == 1 {
			return nil, errHandler
		}
		require.Equal(t, 1, attempt(msg), "all its attempts again")
		return nil, r.Write(msg.Context(), "pay")
	})
	dead := r.inState(t, msg.UUID, sqlinbox.QueueDead)
	requeued := make(chan bool, 8)
	q := r.queueStore(t)
	for range cap(requeued) {
		go func() {
			done, err := q.Requeue(context.Background(), dead.Seq)
			requeued <- done && err == nil
		}()
	}
	actions := 0
	for range cap(requeued) {
		if <-requeued {
			actions++
		}
	}
	require.Equal(t, 1, actions)
	r.finished(t, "pay", 1)
	done, err := r.queueStore(t).Requeue(context.Background(), dead.Seq)
	require.NoError(t, err)
	require.False(t, done)
	require.Equal(t, map[string]int{msg.UUID: 2}, calls.all())
}

// ackBare works on the queue without the inbox's middleware: an ack completes, a nack does not.
func (s *suite) ackBare(t *testing.T) {
	r := s.rig(t, Options{}, inbox.Config{})
	var calls starts
	w := r.work(t, workerConfig{bare: true}, func(msg *message.Message) ([]*message.Message, error) {
		if calls.add(msg.UUID) < 3 {
			return nil, errHandler
		}
		return nil, nil
	})
	msg := newMessage("pay")
	r.store(t, msg)
	r.drained(t)
	require.Equal(t, map[string]int{msg.UUID: 3}, calls.all())
	require.NoError(t, r.handle(msg.Copy(), r.writes("pay")))
	require.Equal(t, 0, r.Total(t), "it is handled")
	require.NotEmpty(t, w.logs.at("INFO"))
}

// b9Queued acks in the handler, before its work: the row ends with the work, not with the ack.
func (s *suite) b9Queued(t *testing.T) {
	r := s.rig(t, Options{}, inbox.Config{})
	r.store(t, newMessage("pay"))
	r.work(t, workerConfig{}, func(msg *message.Message) ([]*message.Message, error) {
		msg.Ack()
		for end := time.Now().Add(200 * time.Millisecond); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
			if r.queued(t) != 1 {
				t.Error("the ack has ended the row")
				break
			}
		}
		return nil, r.Write(msg.Context(), "pay")
	})
	r.drained(t)
	require.Equal(t, 1, r.Count(t, "pay"))
	require.Eventually(t, func() bool { return r.events.count(inbox.OutcomeAckedEarly) == 1 }, patience, time.Millisecond)
}
