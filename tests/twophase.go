package tests

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox"
)

// twoPhase are the cases about messages that are stored now and handled later (E), and what holds for them as for others.
func (s *suite) twoPhase() []testCase {
	return slices.Concat(s.queueIntake(), s.queueLeases(), s.queueOrder(), s.queueEnds(), s.queuePublishing(), s.queueSteps(),
		s.queueOperations(), s.queueCrashes(), s.queueOperators())
}

// twoPhaseTasks are what the children of these cases do.
func (s *suite) twoPhaseTasks() map[string]taskFunc {
	return map[string]taskFunc{
		queueWorkTask: s.workAndDie, queueIntakeTask: s.intakeAndDie, queueDrainTask: s.drainChild, queueProviderTask: s.chargeAndDie,
	}
}

// queueStore is what every store has for its queue.
type queueStore interface {
	inbox.QueueStore
	NewSubscriber(config sqlinbox.SubscriberConfig) (*sqlinbox.Subscriber, error)
	NewPublisher(config sqlinbox.PublisherConfig) *sqlinbox.Publisher
	Stats(ctx context.Context) ([]sqlinbox.QueueStats, error)
	Stuck(ctx context.Context, olderThan time.Duration) ([]sqlinbox.QueuedMessage, error)
	Requeue(ctx context.Context, seq int64) (bool, error)
	Kill(ctx context.Context, seq int64) (bool, error)
	HealthCheck(limit time.Duration) func(ctx context.Context) error
}

func (e *Env) queueStore(t testing.TB) queueStore {
	t.Helper()
	q, ok := e.Store.(queueStore)
	require.True(t, ok, "%T has no queue", e.Store)
	return q
}

// table gives another table of the inbox by its suffix.
func (e *Env) table(suffix string) string { return strings.Replace(e.Produced, "_produced", suffix, 1) }

// workerConfig is how a worker works; the zero value is a consumer without a publish topic behind the inbox.
type workerConfig struct {
	sqlinbox.SubscriberConfig
	publisher message.Publisher // of what the handler returns
	outer     []message.HandlerMiddleware
	inner     []message.HandlerMiddleware
	bare      bool // without the inbox's middleware
	consumer  string
}

// queueWorker is a router on the queue.
type queueWorker struct {
	*message.Router
	logs *logs
}

// work starts a router whose handler works on the queue.
func (r *rig) work(t testing.TB, c workerConfig, handler message.HandlerFunc) *queueWorker {
	t.Helper()
	w := &queueWorker{logs: &logs{}}
	if c.BackoffMin == 0 {
		c.BackoffMin, c.BackoffMax = time.Millisecond, 20*time.Millisecond
	}
	if c.PollInterval == 0 {
		c.PollInterval = 50 * time.Millisecond
	}
	if c.CloseTimeout == 0 {
		c.CloseTimeout = patience
	}
	if c.consumer == "" {
		c.consumer = consumer
	}
	c.Logger = w.logs
	sub, err := r.queueStore(t).NewSubscriber(c.SubscriberConfig)
	require.NoError(t, err)
	w.Router, err = message.NewRouter(message.RouterConfig{CloseTimeout: patience}, w.logs)
	require.NoError(t, err)
	w.AddMiddleware(c.outer...)
	if !c.bare {
		w.AddMiddleware(r.Middleware)
	}
	w.AddMiddleware(c.inner...)
	if c.publisher != nil {
		w.AddHandler(consumer, c.consumer, sub, topicOut, c.publisher, handler)
	} else {
		w.AddConsumerHandler(consumer, c.consumer, sub, consume(handler))
	}
	ran := make(chan error, 1)
	go func() { ran <- w.Run(context.Background()) }()
	t.Cleanup(func() {
		_ = w.Close()
		require.NoError(t, <-ran)
	})
	within(t, patience, "start of the worker", func() { <-w.Running() })
	return w
}

// store passes messages through the intake.
func (r *rig) store(t testing.TB, messages ...*message.Message) {
	t.Helper()
	for _, msg := range messages {
		require.NoError(t, r.Intake(consumer)(msg.Copy()))
	}
}

// storeMany stores n messages with few statements.
func (r *rig) storeMany(t testing.TB, n int, payload string) {
	t.Helper()
	messages := make([]*message.Message, n)
	for i := range messages {
		messages[i] = newMessage(payload)
	}
	publisher := r.queueStore(t).NewPublisher(sqlinbox.PublisherConfig{})
	for chunk := range slices.Chunk(messages, 100) {
		require.NoError(t, publisher.Publish(consumer, chunk...))
	}
}

// queued counts the rows of the queue.
func (r *rig) queued(t testing.TB) int {
	t.Helper()
	return r.scalar(t, "SELECT count(*) FROM "+r.table("_queue"))
}

// drained waits until the queue is empty.
func (r *rig) drained(t testing.TB) {
	t.Helper()
	require.Eventually(t, func() bool { return r.queued(t) == 0 }, 3*patience, 5*time.Millisecond, "the queue is not empty")
}

// stuck gives the messages in the queue.
func (r *rig) stuck(t testing.TB) []sqlinbox.QueuedMessage {
	t.Helper()
	all, err := r.queueStore(t).Stuck(context.Background(), 0)
	require.NoError(t, err)
	return all
}

// row gives a message of the queue.
func (r *rig) row(t testing.TB, id string) (sqlinbox.QueuedMessage, bool) {
	t.Helper()
	all := r.stuck(t)
	at := slices.IndexFunc(all, func(m sqlinbox.QueuedMessage) bool { return m.Key.ID == id })
	if at < 0 {
		return sqlinbox.QueuedMessage{}, false
	}
	return all[at], true
}

// inState waits until a message of the queue is in a state, and gives it.
func (r *rig) inState(t testing.TB, id string, state sqlinbox.QueueState) (m sqlinbox.QueuedMessage) {
	t.Helper()
	require.Eventually(t, func() bool {
		var there bool
		m, there = r.row(t, id)
		return there && m.State == state
	}, patience, 5*time.Millisecond, "message %s is not %s", id, state)
	return m
}

// expire ends all leases, as time would.
func (r *rig) expire(t *testing.T) {
	t.Helper()
	past := map[sqlinbox.Dialect]string{
		sqlinbox.PostgreSQL: "now() - interval '1 second'", sqlinbox.MySQL: "UTC_TIMESTAMP(6) - INTERVAL 1 SECOND", sqlinbox.SQLite: "0",
	}[r.Config.Dialect]
	r.alter(t, "UPDATE "+r.table("_queue")+" SET due_at = "+past+" WHERE due_at IS NOT NULL")
}

// attempt is which attempt of a leased message a handler makes.
func attempt(msg *message.Message) int {
	lease, ok := inbox.LeaseFromContext(msg.Context())
	if !ok {
		return 0
	}
	return lease.Delivery().Attempt
}

// starts counts handler calls by a name.
type starts struct {
	mu     sync.Mutex
	counts map[string]int
	order  []string
}

func (s *starts) add(name string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.counts == nil {
		s.counts = map[string]int{}
	}
	s.counts[name]++
	s.order = append(s.order, name)
	return s.counts[name]
}

func (s *starts) all() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.counts)
}

func (s *starts) names() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.order)
}

// finished asserts that a queued message is handled, with one effect of its name, and that nothing of it is left in the
// queue.
func (r *rig) finished(t *testing.T, name string, rows int) {
	t.Helper()
	r.drained(t)
	require.Equal(t, 1, r.Count(t, name), "effects")
	require.Equal(t, rows, r.Rows(t), "memory rows")
	require.Equal(t, 0, r.scalar(t, "SELECT count(*) FROM "+r.Memory+" WHERE processed_at IS NULL"), "unprocessed")
	require.Equal(t, 0, r.scalar(t, "SELECT count(*) FROM "+r.table("_steps")), "steps")
}
