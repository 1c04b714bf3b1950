package tests

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/inboxtest"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox"
)

const (
	queueWorkTask   = "work on the queue and die"
	queueIntakeTask = "store for later and die"
	queueDrainTask  = "drain the queue"
)

// queueCrashes are the cases in which processes die.
func (s *suite) queueCrashes() []testCase {
	return []testCase{
		{"B1_KilledAfterTheIntake", s.queueKilledAfterIntake},
		{"B1_QueueWorkerKilledInTheHandler", s.queueKilledAt("entered", 2)},
		{"B1_QueueWorkerKilledInAStep", s.queueKilledAt("stepping", 2)},
		{"B1_QueueWorkerKilledInItsTransaction", s.queueKilledAt("written", 2)},
		{"B1_QueueWorkerKilledBeforeTheAck", s.queueKilledAt("unacked", 1)},
		{"E3_KilledWorkerIsTakenOver", s.queueKilledAt("entered", 3)},
		{"E4_HandlerThatEndsItsProcess", s.e4},
		{"E9_ManyLargeRows", s.e9},
		{"A2_SwitchedToTwoPhaseAndBack", s.switched},
	}
}

func (s *suite) intakeAndDie(t *testing.T, this task) {
	r := s.rig(t, Options{Space: this.Space, DSN: this.DSN}, inbox.Config{})
	r.store(t, message.NewMessage(this.Args["id"], message.Payload(payloadOfKilled)))
	inboxtest.Point("stored")
}

func (s *suite) queueKilledAfterIntake(t *testing.T) {
	r := s.rig(t, Options{}, inbox.Config{})
	msg := newMessage(payloadOfKilled)
	child := s.startChild(t, r.Env, task{Name: queueIntakeTask, Args: map[string]string{"id": msg.UUID}}, "stored")
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	require.NoError(t, child.WaitPoint(ctx))
	require.NoError(t, child.Kill())
	r.store(t, msg) // the broker delivers it again
	r.told(t, map[inbox.Outcome]int{inbox.OutcomeQueued: 1})
	r.work(t, workerConfig{}, r.writes("pay"))
	r.finished(t, "pay", 1)
}

// workAndDie is a child that works on the queue and passes points at which it may be killed. A message "exit" ends the
// process.
func (s *suite) workAndDie(t *testing.T, this task) {
	r := s.rig(t, Options{Space: this.Space, DSN: this.DSN}, inbox.Config{})
	concurrency, err := strconv.Atoi(this.Args["concurrency"])
	require.NoError(t, err)
	unacked := func(next message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			produced, err := next(msg)
			inboxtest.Point("unacked")
			return produced, err
		}
	}
	config := sqlinbox.SubscriberConfig{LeaseTime: time.Second, Concurrency: concurrency}
	r.work(t, workerConfig{SubscriberConfig: config, outer: []message.HandlerMiddleware{unacked}}, func(msg *message.Message) ([]*message.Message, error) {
		inboxtest.Point("entered")
		if string(msg.Payload) == "exit" {
			time.Sleep(20 * time.Millisecond) // its neighbours are at work
			os.Exit(3)
		}
		time.Sleep(5 * time.Millisecond)
		if _, err := inbox.Step(msg.Context(), "call", func(context.Context) (int, error) {
			inboxtest.Point("stepping")
			return 1, nil
		}); err != nil {
			return nil, err
		}
		if err := r.Write(msg.Context(), "pay"); err != nil {
			return nil, err
		}
		inboxtest.Point("written")
		return nil, nil
	})
	for r.queued(t) > 0 {
		time.Sleep(10 * time.Millisecond)
	}
}

// queueKilledAt kills workers at a point until the message has come to its last attempt.
func (s *suite) queueKilledAt(point string, attempts int) func(*testing.T) {
	return func(t *testing.T) {
		r := s.rig(t, Options{}, inbox.Config{})
		msg := newMessage(payloadOfKilled)
		r.store(t, msg)
		for n := range max(attempts-1, 1) {
			child := s.startChild(t, r.Env, task{Name: queueWorkTask, Args: map[string]string{"concurrency": "1"}}, point)
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			require.NoError(t, child.WaitPoint(ctx), "child %d", n)
			cancel()
			require.NoError(t, child.Kill())
		}
		var last atomic.Int32
		r.work(t, workerConfig{}, func(msg *message.Message) ([]*message.Message, error) {
			last.Store(int32(attempt(msg)))
			return nil, r.Write(msg.Context(), "pay")
		})
		r.finished(t, "pay", 1)
		if attempts > 1 {
			require.EqualValues(t, attempts, last.Load(), "taken over, once for each start")
		} else {
			require.Zero(t, last.Load())
		}
		require.NoError(t, r.handle(msg.Copy(), r.writes("pay")))
		require.Equal(t, 1, r.Total(t))
	}
}

// e4 has one message that ends its process, between others; processes are started again and again.
func (s *suite) e4(t *testing.T) {
	r := s.rig(t, Options{}, inbox.Config{})
	r.storeMany(t, 10, "pay")
	killer := newMessage("exit")
	r.store(t, killer)
	r.storeMany(t, 10, "pay")
	started := 0
	for {
		require.Less(t, started, 8, "processes")
		started++
		child := s.startChild(t, r.Env, task{Name: queueWorkTask, Args: map[string]string{"concurrency": "8"}}, "")
		ended := make(chan error, 1)
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			ended <- child.Wait(ctx)
		}()
		parked := false
		require.Eventually(t, func() bool {
			parked = r.scalar(t, "SELECT count(*) FROM "+r.table("_queue")+" WHERE state = 2") > 0 && r.queued(t) == 1
			return parked || len(ended) > 0
		}, patience, 10*time.Millisecond, "%v", r.stuck(t))
		if parked {
			require.NoError(t, child.Kill())
			break
		}
	}
	require.GreaterOrEqual(t, started, 3)
	row, there := r.row(t, killer.UUID)
	require.True(t, there)
	require.Contains(t, row.LastError, "had no end")
	require.Equal(t, 20, r.Count(t, "pay"))
	require.Equal(t, 1, r.queued(t))
}

// drainChild works on a queue until it is empty, and looks at its memory.
func (s *suite) drainChild(t *testing.T, this task) {
	r := s.rig(t, Options{Space: this.Space, DSN: this.DSN}, inbox.Config{})
	r.work(t, workerConfig{}, func(msg *message.Message) ([]*message.Message, error) {
		if len(msg.Payload) != 10<<10 {
			return nil, errHandler
		}
		return nil, nil
	})
	for r.queued(t) > 0 {
		time.Sleep(50 * time.Millisecond)
	}
	if runtime.GOOS != "linux" {
		return
	}
	status, err := os.ReadFile("/proc/self/status")
	require.NoError(t, err)
	for line := range strings.Lines(string(status)) {
		if peak, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kB, err := strconv.Atoi(strings.Fields(peak)[0])
			require.NoError(t, err)
			require.Less(t, kB, 256<<10, "kB of memory at the peak")
		}
	}
}

// e9 drains many large rows in a process of its own. A tenth of a million is still too much for every run.
func (s *suite) e9(t *testing.T) {
	r := s.rig(t, Options{}, inbox.Config{})
	n := 2000
	if Scale(10, 1) == 10 {
		n = 1_000_000
	}
	payload := strings.Repeat("x", 10<<10)
	for range n / 1000 {
		r.storeMany(t, 1000, payload)
	}
	child := s.startChild(t, r.Env, task{Name: queueDrainTask}, "")
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(n/1000+1)*patience)
	defer cancel()
	require.NoError(t, child.Wait(ctx), child.Output())
	require.Equal(t, 0, r.queued(t))
	require.Equal(t, n, r.scalar(t, "SELECT count(*) FROM "+r.Memory+" WHERE processed_at IS NOT NULL"))
}

// switched delivers copies of many messages, while the consumer is inline, two-phase, and inline again.
func (s *suite) switched(t *testing.T) {
	r := s.rig(t, Options{}, inbox.Config{})
	const callers, each = 4, 60
	total := callers * each
	r.work(t, workerConfig{}, func(msg *message.Message) ([]*message.Message, error) {
		return nil, r.Write(msg.Context(), string(msg.Payload))
	})
	var mode atomic.Int32
	var sent atomic.Int32
	go func() {
		for int(sent.Load()) < 2*total {
			mode.Store((sent.Load() / int32(total/3)) % 2)
			time.Sleep(time.Millisecond)
		}
	}()
	var wg sync.WaitGroup
	errs := make(chan error, 2*total)
	for caller := range callers {
		for range 2 { // each message twice, at about the same time
			wg.Go(func() {
				for i := range each {
					id := fmt.Sprintf("m%d/%d", caller, i)
					msg := message.NewMessage(id, message.Payload(id))
					err := errHandler
					for deadline := time.Now().Add(patience); err != nil && time.Now().Before(deadline); {
						if mode.Load() == 0 {
							err = r.handle(msg.Copy(), r.writes(id))
						} else {
							err = r.Intake(consumer)(msg.Copy())
						}
					}
					errs <- err
					sent.Add(1)
				}
			})
		}
	}
	within(t, 3*patience, "the deliveries", wg.Wait)
	close(errs)
	for err := range errs {
		require.NoError(t, err)
	}
	r.drained(t)
	require.Equal(t, total, r.Total(t), "effects")
	require.Equal(t, total, r.scalar(t, "SELECT count(DISTINCT name) FROM "+r.Effects))
	require.Equal(t, total, r.Rows(t))
	require.Positive(t, r.events.count(inbox.OutcomeStored))
}
