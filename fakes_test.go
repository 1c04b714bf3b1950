package inbox_test

import (
	"context"
	"errors"
	"maps"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/stretchr/testify/require"

	inbox "github.com/watermill-contrib/watermill-inbox"
)

// fakeStore is a Store in memory: the copies of a message wait for each other.
type fakeStore struct {
	attempts int                                          // how often the work runs before it is committed
	commit   func() (done bool, err error)                // the fate and the reply of COMMIT
	answer   func(d inbox.Delivery) (inbox.Result, error) // the answer, instead of all below
	all      bool                                         // everything is remembered
	unused   bool                                         // Result.TxUnused

	calls atomic.Int32
	begun atomic.Int32

	locks sync.Map // one delivery of a key at a time
	mu    sync.Mutex
	rows  map[inbox.Key]inbox.Fingerprint
	seen  []inbox.Delivery
	txs   int
}

func newFakeStore() *fakeStore { return &fakeStore{rows: map[inbox.Key]inbox.Fingerprint{}} }

func (s *fakeStore) Process(ctx context.Context, d inbox.Delivery, fn inbox.Func) (inbox.Result, error) {
	s.calls.Add(1)
	s.mu.Lock()
	s.seen = append(s.seen, d)
	s.mu.Unlock()
	if s.answer != nil {
		return s.answer(d)
	}
	lock, _ := s.locks.LoadOrStore(d.Key, &sync.Mutex{})
	lock.(*sync.Mutex).Lock()
	defer lock.(*sync.Mutex).Unlock()
	fail := func(phase inbox.Phase, err error) (inbox.Result, error) {
		return inbox.Result{}, &inbox.Error{Phase: phase, Key: d.Key, Handler: d.Handler, Err: err}
	}

	s.mu.Lock()
	remembered, found := s.rows[d.Key]
	s.mu.Unlock()
	switch {
	case s.all:
		return inbox.Result{Outcome: inbox.OutcomeDuplicate}, nil
	case found && remembered != d.Fingerprint && !d.AcceptMismatch:
		return fail(inbox.PhaseClaim, inbox.ErrMismatch)
	case found:
		return inbox.Result{Outcome: inbox.OutcomeDuplicate, Mismatch: remembered != d.Fingerprint}, nil
	}

	var produced []*message.Message
	for range max(s.attempts, 1) {
		var err error
		if produced, err = s.run(ctx, fn); err != nil {
			return fail(inbox.PhaseHandle, err)
		}
	}
	done, err := true, error(nil)
	if s.commit != nil {
		done, err = s.commit()
	}
	if done {
		s.mu.Lock()
		s.rows[d.Key] = d.Fingerprint
		s.mu.Unlock()
	}
	if err != nil {
		return fail(inbox.PhaseCommit, err)
	}
	return inbox.Result{Outcome: inbox.OutcomeProcessed, Messages: produced, TxUnused: s.unused}, nil
}

func (s *fakeStore) run(ctx context.Context, fn inbox.Func) ([]*message.Message, error) {
	s.begun.Add(1)
	defer s.begun.Add(-1)
	s.mu.Lock()
	s.txs++
	number := s.txs
	s.mu.Unlock()
	return fn(context.WithValue(ctx, ctxKey("tx"), number))
}

func (s *fakeStore) rememberAll() { s.all = true }

// open is the number of transactions that are open.
func (s *fakeStore) open() int { return int(s.begun.Load()) }

func (s *fakeStore) keys() []inbox.Key {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.rows))
}

func (s *fakeStore) deliveries() []inbox.Delivery {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.seen)
}

// only gives the one delivery that the store has seen.
func (s *fakeStore) only(t *testing.T) inbox.Delivery {
	t.Helper()
	seen := s.deliveries()
	require.Len(t, seen, 1)
	return seen[0]
}

type ctxKey string

// tx gives the number of the fake transaction in a context, 0 for none.
func tx(ctx context.Context) int {
	n, _ := ctx.Value(ctxKey("tx")).(int)
	return n
}

// events is an Observer that keeps what it is told.
type events struct {
	mu   sync.Mutex
	list []inbox.Event
}

func (e *events) observe(_ context.Context, event inbox.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.list = append(e.list, event)
}

func (e *events) all() []inbox.Event {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.list)
}

func (e *events) outcomes() []inbox.Outcome {
	var outcomes []inbox.Outcome
	for _, event := range e.all() {
		outcomes = append(outcomes, event.Outcome)
	}
	return outcomes
}

func (e *events) only(t *testing.T) inbox.Event {
	t.Helper()
	all := e.all()
	require.Len(t, all, 1, "the Observer is told once")
	return all[0]
}

func mustNew(t *testing.T, store inbox.Store, config inbox.Config) *inbox.Inbox {
	t.Helper()
	in, err := inbox.New(store, config)
	require.NoError(t, err)
	return in
}

func nothing(*message.Message) ([]*message.Message, error) { return nil, nil }

// ends are the ways in which a handler may end.
func ends() map[string]func() error {
	return map[string]func() error{
		"processed":            func() error { return nil },
		"error":                func() error { return errors.New("mine") },
		"panic":                func() error { panic("mine") },
		"panic with an error":  func() error { panic(errors.New("mine")) },
		"runtime.Goexit":       func() error { runtime.Goexit(); return nil },
		"panic by a nil call":  nil,
		"error of the context": func() error { return context.Canceled },
	}
}

// apart calls fn on a goroutine of its own, which may panic or end by runtime.Goexit, and gives the panic's value.
func apart(fn func()) (panicked any) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() { panicked = recover() }()
		fn()
	}()
	<-done
	return panicked
}

// routed gives the context that a router gives to the messages of a handler.
func routed(t *testing.T, handler, topic string) context.Context {
	t.Helper()
	pubSub := gochannel.NewGoChannel(gochannel.Config{}, watermill.NopLogger{})
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	require.NoError(t, err)
	got := make(chan context.Context, 1)
	router.AddConsumerHandler(handler, topic, pubSub, func(msg *message.Message) error {
		got <- context.WithoutCancel(msg.Context())
		return nil
	})
	done := make(chan error, 1)
	go func() { done <- router.Run(t.Context()) }()
	<-router.Running()
	require.NoError(t, pubSub.Publish(topic, message.NewMessage("1", nil)))
	ctx := <-got
	require.NoError(t, router.Close())
	require.NoError(t, <-done)
	require.NoError(t, pubSub.Close())
	return ctx
}

func logged(logger *watermill.CaptureLoggerAdapter, level watermill.LogLevel) []watermill.CapturedMessage {
	return logger.Captured()[level]
}

func acked(msg *message.Message) bool {
	select {
	case <-msg.Acked():
		return true
	default:
		return false
	}
}

func requirePhase(t *testing.T, want inbox.Phase, err error) {
	t.Helper()
	var e *inbox.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, want, e.Phase)
}
