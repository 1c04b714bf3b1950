package tests

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox"
)

// queueLeases are the cases about leases and attempts.
func (s *suite) queueLeases() []testCase {
	return []testCase{
		{"E1_AnotherWorkerPolls", s.e1Polls},
		{"E1_LostWhileTheHandlerLives", s.e1Lost(false, false)},
		{"E1_LostAndTheOtherStillAtWork", s.e1Lost(false, true)},
		{"E1_LostBeforeTheTransaction", s.e1Lost(true, true)},
		{"E1_LostLeaseCancelsTheHandler", s.e1Cancelled},
		{"E2_TwentyWorkersOnFailedRows", s.e2},
		{"E3_HeartbeatKeepsTheLease", s.e3},
		{"E3_HeartbeatWhileAnotherCompletes", s.e3Completing},
		{"E8_Attempts", s.e8},
		{"E8_ShutdownIsNotCharged", s.e8Shutdown},
		{"E8_CloseGivesBackWhatTakesTooLong", s.e8CloseTimeout},
		{"B6_CloseOfAQueueWorkerWithGrace", s.b6QueueGrace},
		{"B7_QueueOnAPoolOfOne", s.b7Queue},
		{"B10_HandlerOfAQueuedMessageEndsItsTransaction", s.b10Queue},
		{"B5_QueuedMessagesHandlerPanics", s.b5Queue},
		{"B9_QueuedMessageAckedByItsHandler", s.b9Queue},
	}
}

// e1Polls has a second worker that polls all the time while the first one is at work.
func (s *suite) e1Polls(t *testing.T) {
	r := s.rig(t, Options{}, inbox.Config{})
	var calls starts
	fast := workerConfig{SubscriberConfig: sqlinbox.SubscriberConfig{PollInterval: 5 * time.Millisecond}}
	handler := func(msg *message.Message) ([]*message.Message, error) {
		calls.add(msg.UUID)
		time.Sleep(100 * time.Millisecond) // many polls
		return nil, r.Write(msg.Context(), "pay")
	}
	for range 2 {
		r.work(t, fast, handler)
	}
	msg := newMessage("pay 10")
	r.store(t, msg)
	r.finished(t, "pay", 1)
	require.Equal(t, map[string]int{msg.UUID: 1}, calls.all())
}

// e1Lost takes the lease away from a handler, which another worker then does the work of; the first one ends later, with
// or without having asked for a transaction.
func (s *suite) e1Lost(asks, early bool) func(*testing.T) {
	return func(t *testing.T) {
		r := s.rig(t, Options{}, inbox.Config{})
		entered, goOn := make(chan struct{}), make(chan struct{})
		// One at a time: its own loop must not take the message again while the other one can.
		alone := sqlinbox.SubscriberConfig{Concurrency: 1}
		r.work(t, workerConfig{SubscriberConfig: alone}, func(msg *message.Message) ([]*message.Message, error) {
			close(entered)
			<-goOn
			if asks {
				return nil, r.Write(msg.Context(), "pay")
			}
			return nil, nil
		})
		r.store(t, newMessage("pay 10"))
		await(t, entered, "the first handler")
		r.expire(t)
		taken, finish := make(chan struct{}), make(chan struct{})
		r.work(t, workerConfig{}, func(msg *message.Message) ([]*message.Message, error) {
			close(taken)
			<-finish
			return nil, r.Write(msg.Context(), "pay")
		})
		await(t, taken, "the second handler")
		if early {
			close(goOn)
		} else {
			close(finish)
			r.finished(t, "pay", 1)
			close(goOn)
		}
		lost := func() (inbox.Event, bool) {
			all := r.events.all()
			at := slices.IndexFunc(all, func(e inbox.Event) bool { return e.Attempt == 1 })
			if at < 0 {
				return inbox.Event{}, false
			}
			return all[at], true
		}
		require.Eventually(t, func() bool { _, told := lost(); return told }, patience, time.Millisecond)
		event, _ := lost()
		require.ErrorIs(t, event.Err, inbox.ErrLeaseLost)
		require.True(t, inbox.IsTransient(event.Err))
		if early {
			require.Equal(t, 0, r.Total(t))
			close(finish)
		}
		r.finished(t, "pay", 1)
		r.requireIdle(t)
	}
}

// e1Cancelled gives the row to somebody else: the heartbeat finds out, and the handler's context ends with the reason.
func (s *suite) e1Cancelled(t *testing.T) {
	r := s.rig(t, Options{}, inbox.Config{})
	cause := make(chan error, 1)
	entered := make(chan struct{})
	var calls atomic.Int32
	r.work(t, workerConfig{SubscriberConfig: sqlinbox.SubscriberConfig{LeaseTime: time.Second}}, func(msg *message.Message) ([]*message.Message, error) {
		if calls.Add(1) > 1 {
			return nil, r.Write(msg.Context(), "pay")
		}
		close(entered)
		<-msg.Context().Done()
		cause <- context.Cause(msg.Context())
		return nil, msg.Context().Err()
	})
	r.store(t, newMessage("pay 10"))
	await(t, entered, "the handler")
	r.alter(t, "UPDATE "+r.table("_queue")+" SET token = "+r.Bytes16(inbox.Key{ID: "somebody"}.Storage()))
	within(t, patience, "the handler's end", func() { require.ErrorIs(t, <-cause, inbox.ErrLeaseLost) })
	r.finished(t, "pay", 1)
}

// e2 starts 20 workers at once on rows that have failed once.
func (s *suite) e2(t *testing.T) {
	r := s.rig(t, Options{}, inbox.Config{})
	n := Scale(500, 60)
	r.storeMany(t, n, "pay")
	first := r.work(t, workerConfig{SubscriberConfig: sqlinbox.SubscriberConfig{BackoffMin: 500 * time.Millisecond, BackoffMax: time.Second}},
		func(*message.Message) ([]*message.Message, error) { return nil, errHandler })
	require.Eventually(t, func() bool { return r.events.count(inbox.OutcomeFailed) >= n }, patience, 5*time.Millisecond)
	require.NoError(t, first.Close())
	r.expire(t) // all are due

	var calls starts
	for range 20 {
		r.work(t, workerConfig{SubscriberConfig: sqlinbox.SubscriberConfig{Concurrency: 5}}, func(msg *message.Message) ([]*message.Message, error) {
			calls.add(fmt.Sprint(msg.UUID, "/", attempt(msg)))
			if attempt(msg) < 4 {
				return nil, errHandler
			}
			return nil, r.Write(msg.Context(), "pay")
		})
	}
	r.drained(t)
	require.Equal(t, n, r.Count(t, "pay"))
	for call, count := range calls.all() {
		require.Equal(t, 1, count, call)
	}
}

// e3 has a handler that takes three times its lease.
func (s *suite) e3(t *testing.T) {
	r := s.rig(t, Options{}, inbox.Config{})
	var calls starts
	for range 2 {
		r.work(t, workerConfig{SubscriberConfig: sqlinbox.SubscriberConfig{LeaseTime: time.Second}}, func(msg *message.Message) ([]*message.Message, error) {
			calls.add(msg.UUID)
			select {
			case <-time.After(3 * time.Second):
			case <-msg.Context().Done():
				return nil, context.Cause(msg.Context())
			}
			return nil, r.Write(msg.Context(), "pay")
		})
	}
	msg := newMessage("pay 10")
	r.store(t, msg)
	r.finished(t, "pay", 1)
	require.Equal(t, map[string]int{msg.UUID: 1}, calls.all())
}

// e3Completing has one handler that holds its completing transaction for long: it must not keep the heartbeat from the
// lease of the other. SQLite has one writer, which nobody may hold for so long.
func (s *suite) e3Completing(t *testing.T) {
	if !s.Server {
		s.e3(t)
		return
	}
	r := s.rig(t, Options{}, inbox.Config{})
	var calls starts
	r.storeMany(t, 4, "pay")
	for range 2 {
		var open atomic.Int32
		r.work(t, workerConfig{SubscriberConfig: sqlinbox.SubscriberConfig{LeaseTime: time.Second, Concurrency: 2}}, func(msg *message.Message) ([]*message.Message, error) {
			calls.add(msg.UUID)
			if open.Add(1) == 1 {
				if err := r.Write(msg.Context(), "pay"); err != nil {
					return nil, err
				}
				time.Sleep(2500 * time.Millisecond)
				return nil, nil
			}
			time.Sleep(2500 * time.Millisecond)
			return nil, r.Write(msg.Context(), "pay")
		})
	}
	r.drained(t)
	require.Equal(t, 4, r.Count(t, "pay"))
	for _, n := range calls.all() {
		require.Equal(t, 1, n)
	}
}

// e8 counts attempts: an attempt is a start.
func (s *suite) e8(t *testing.T) {
	r := s.rig(t, Options{}, inbox.Config{})
	var calls starts
	r.work(t, workerConfig{}, func(msg *message.Message) ([]*message.Message, error) {
		n := calls.add(msg.UUID)
		require.Equal(t, n, attempt(msg))
		if n < 3 && string(msg.Payload) == "hard" {
			return nil, errHandler
		}
		return nil, r.Write(msg.Context(), string(msg.Payload))
	})
	easy, hard := newMessage("easy"), newMessage("hard")
	r.store(t, easy, hard)
	r.finished(t, "hard", 2)
	require.Equal(t, map[string]int{easy.UUID: 1, hard.UUID: 3}, calls.all())
	for _, event := range r.events.all() {
		if event.Outcome == inbox.OutcomeProcessed {
			require.Equal(t, map[string]int{easy.UUID: 1, hard.UUID: 3}[event.Key.ID], event.Attempt)
		}
	}
}

// e8Shutdown closes the router in mid-handler, with each way a handler may answer that: rolled back and given back, no
// attempt charged, though one is all that the message has.
func (s *suite) e8Shutdown(t *testing.T) {
	for name, answer := range map[string]func(ctx context.Context) error{
		"context's error": func(ctx context.Context) error { return ctx.Err() },
		"its own error":   func(context.Context) error { return errHandler },
	} {
		t.Run(name, func(t *testing.T) {
			r := s.rig(t, Options{}, inbox.Config{})
			entered := make(chan struct{})
			one := workerConfig{SubscriberConfig: sqlinbox.SubscriberConfig{MaxAttempts: 1}}
			w := r.work(t, one, r.writesThen("pay", func(msg *message.Message) error {
				close(entered)
				<-msg.Context().Done()
				return answer(msg.Context())
			}))
			msg := newMessage("pay 10")
			r.store(t, msg)
			await(t, entered, "the handler")
			require.NoError(t, w.Close())
			row, there := r.row(t, msg.UUID)
			require.True(t, there)
			require.Equal(t, sqlinbox.QueueWaiting, row.State)
			require.Equal(t, 0, row.Attempts)
			require.Equal(t, 0, r.Total(t))

			r.work(t, one, func(msg *message.Message) ([]*message.Message, error) {
				require.Equal(t, 1, attempt(msg))
				return nil, r.Write(msg.Context(), "pay")
			})
			r.finished(t, "pay", 1)
		})
	}
}

// b6QueueGrace closes the router under a handler that goes on in the grace time.
func (s *suite) b6QueueGrace(t *testing.T) {
	r := s.rig(t, Options{}, inbox.Config{Grace: 2 * patience})
	entered, closing := make(chan struct{}), make(chan struct{})
	w := r.work(t, workerConfig{}, func(msg *message.Message) ([]*message.Message, error) {
		close(entered)
		<-closing
		return nil, r.Write(msg.Context(), "pay")
	})
	r.store(t, newMessage("pay 10"))
	await(t, entered, "the handler")
	go func() {
		time.Sleep(50 * time.Millisecond) // the router is on its way down
		close(closing)
	}()
	require.NoError(t, w.Close())
	require.Equal(t, 0, r.queued(t))
	r.finished(t, "pay", 1)
	require.Empty(t, w.logs.at("ERROR"))
}

// b7Queue works on a queue with one connection for everything: intake, leases, heartbeats, steps, transactions.
func (s *suite) b7Queue(t *testing.T) {
	r := s.rig(t, Options{PoolSize: 1}, inbox.Config{})
	publisher := r.queueStore(t).NewPublisher(sqlinbox.PublisherConfig{})
	w := r.work(t, workerConfig{}, func(msg *message.Message) ([]*message.Message, error) {
		if _, err := inbox.Step(msg.Context(), "call", func(context.Context) (int, error) { return 1, nil }); err != nil {
			return nil, err
		}
		if attempt(msg) == 1 {
			return nil, errHandler
		}
		if err := r.Write(msg.Context(), "pay"); err != nil {
			return nil, err
		}
		if string(msg.Payload) == "pay" {
			out := newMessage("more")
			out.SetContext(msg.Context())
			return nil, publisher.Publish(consumer, out)
		}
		return nil, nil
	})
	const n = 20
	for range n {
		r.store(t, newMessage("pay"))
	}
	require.Eventually(t, func() bool { return r.Count(t, "pay") == 2*n }, patience, 5*time.Millisecond)
	r.drained(t)
	require.NoError(t, w.Close())
	require.Equal(t, 2*n, r.Rows(t))
}

// b10Queue has handlers that end the transaction that completes their message.
func (s *suite) b10Queue(t *testing.T) {
	for name, end := range map[string]func(*rig) func(context.Context) error{
		"Commit":   func(r *rig) func(context.Context) error { return r.CommitTx },
		"Rollback": func(r *rig) func(context.Context) error { return r.RollbackTx },
	} {
		t.Run(name, func(t *testing.T) {
			r := s.rig(t, Options{}, inbox.Config{})
			var calls atomic.Int32
			r.work(t, workerConfig{}, func(msg *message.Message) ([]*message.Message, error) {
				if err := r.Write(msg.Context(), "pay"); err != nil {
					return nil, err
				}
				if calls.Add(1) == 1 {
					_ = end(r)(msg.Context())
				}
				return nil, nil
			})
			r.store(t, newMessage("pay 10"))
			r.finished(t, "pay", 1)
			require.Eventually(t, func() bool { return len(r.events.all()) >= 2 }, patience, time.Millisecond)
			require.ErrorIs(t, r.events.all()[1].Err, inbox.ErrTxManaged)
		})
	}
}

// b5Queue has a handler that panics, under a middleware that acks after that: the message is tried again all the same.
func (s *suite) b5Queue(t *testing.T) {
	r := s.rig(t, Options{}, inbox.Config{})
	swallow := func(next message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) (produced []*message.Message, err error) {
			defer func() { _ = recover() }()
			return next(msg)
		}
	}
	r.work(t, workerConfig{outer: []message.HandlerMiddleware{swallow}}, r.writesThen("pay", func(msg *message.Message) error {
		if attempt(msg) == 1 {
			panic("index out of range")
		}
		return nil
	}))
	r.store(t, newMessage("pay 10"))
	r.finished(t, "pay", 1)
	r.requireIdle(t)
}

// b9Queue has a handler that acks its message before its work is done: the row waits for the work, and for the next
// attempt when that fails.
func (s *suite) b9Queue(t *testing.T) {
	r := s.rig(t, Options{}, inbox.Config{})
	r.work(t, workerConfig{}, func(msg *message.Message) ([]*message.Message, error) {
		msg.Ack()
		time.Sleep(50 * time.Millisecond)
		if err := r.Write(msg.Context(), "pay"); err != nil {
			return nil, err
		}
		if attempt(msg) == 1 {
			return nil, errHandler
		}
		return nil, nil
	})
	r.store(t, newMessage("pay 10"))
	r.finished(t, "pay", 1)
}

// e8CloseTimeout closes a subscriber whose reader does not come to an end: the message is given back after the time that
// it may take, for the next one to have at once, and what the first reader does after that is lost.
func (s *suite) e8CloseTimeout(t *testing.T) {
	r := s.rig(t, Options{}, inbox.Config{})
	subscribe := func() (*sqlinbox.Subscriber, *message.Message) {
		sub, err := r.queueStore(t).NewSubscriber(sqlinbox.SubscriberConfig{CloseTimeout: 100 * time.Millisecond})
		require.NoError(t, err)
		messages, err := sub.Subscribe(t.Context(), consumer)
		require.NoError(t, err)
		var msg *message.Message
		within(t, patience, "a message", func() { msg = <-messages })
		return sub, msg
	}
	r.store(t, newMessage("pay 10"))
	sub, first := subscribe()
	within(t, patience, "Close", func() { require.NoError(t, sub.Close()) })
	_, err := sub.Subscribe(t.Context(), consumer)
	require.Error(t, err)

	sub, second := subscribe()
	require.Equal(t, 1, attempt(second))
	require.ErrorIs(t, r.handleWithin(t, first, r.writes("pay")), inbox.ErrLeaseLost)
	require.NoError(t, r.handleWithin(t, second, r.writes("pay")))
	second.Ack()
	require.NoError(t, sub.Close())
	r.finished(t, "pay", 1)
}
