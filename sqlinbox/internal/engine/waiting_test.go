package engine_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox/internal/engine"
)

// copyInHand is a delivery on a goroutine of its own.
type copyInHand struct {
	result inbox.Result
	err    error
	done   atomic.Bool
}

func (c *copyInHand) ended() bool { return c.done.Load() }

func (b *fakeBackend) claimed() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.claims)
}

// waited is the limit of the wait that came with the n-th claim, from 0.
func (b *fakeBackend) waited(n int) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.waits[n]
}

// startCopy delivers and returns when the copy waits for something.
func startCopy(ctx context.Context, e *engine.Engine, d inbox.Delivery, fn inbox.Func) *copyInHand {
	c := &copyInHand{}
	go func() {
		defer func() {
			_ = recover()
			c.done.Store(true)
		}()
		c.result, c.err = e.Process(ctx, d, fn)
	}()
	synctest.Wait()
	return c
}

// standing is a handler that stands still until it is told how to end.
type standing struct {
	end  chan func() error
	over chan struct{} // the test
}

func newStanding(t *testing.T) *standing {
	t.Helper()
	s := &standing{make(chan func() error), make(chan struct{})}
	t.Cleanup(func() { close(s.over) })
	return s
}

func (s *standing) handle(context.Context) ([]*message.Message, error) {
	select {
	case end := <-s.end:
		return nil, end()
	case <-s.over:
		return nil, nil
	}
}

func (s *standing) let(end func() error) {
	select {
	case s.end <- end:
	case <-s.over:
	}
	synctest.Wait()
}

func succeed() error { return nil }

// Copies take neither a claim nor a connection while one of them is at work.
func TestCopiesWaitBeforeTheClaim(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		backend := newFakeBackend()
		e := engine.New(backend, engine.Settings{})
		work := newStanding(t)
		first := startCopy(t.Context(), e, delivery, work.handle)
		var copies []*copyInHand
		for range 5 {
			copies = append(copies, startCopy(t.Context(), e, delivery, never(t)))
		}
		time.Sleep(time.Second)
		require.Equal(t, 1, backend.claimed())
		other := delivery
		other.Key.ID = "other"
		require.Equal(t, inbox.OutcomeProcessed, process(t, e, other).Outcome, "nobody else waits")
		require.Equal(t, 2, backend.claimed())

		work.let(succeed)
		require.Equal(t, inbox.OutcomeProcessed, first.result.Outcome)
		require.Zero(t, first.result.Wait)
		for _, c := range copies {
			require.True(t, c.ended())
			require.NoError(t, c.err)
			require.Equal(t, inbox.Result{Outcome: inbox.OutcomeDuplicate, Wait: time.Second}, c.result)
		}
		require.Equal(t, 2, backend.claimed(), "what the first one did is known")
	})
}

// Copies that may not be answered from memory still go one after the other.
func TestCopiesGoOneAfterTheOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		backend := newFakeBackend()
		e := engine.New(backend, engine.Settings{DoneTTL: -1})
		work := newStanding(t)
		startCopy(t.Context(), e, delivery, work.handle)
		second := startCopy(t.Context(), e, delivery, work.handle)
		third := startCopy(t.Context(), e, delivery, work.handle)
		for n := 1; n <= 3; n++ {
			require.Equal(t, n, backend.claimed())
			require.Equal(t, n > 2, second.ended())
			require.False(t, third.ended())
			work.let(succeed)
		}
		require.True(t, third.ended())
	})
}

func TestTheNextCopyBecomesTheFirst(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func() error{
		"failed":   func() error { return errors.New("declined") },
		"panicked": func() error { panic("index out of range") },
		"exited": func() error {
			runtime.Goexit()
			return nil
		},
		"conflicted": func() error { return dbError{engine.FaultSerialization} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				backend := newFakeBackend()
				e := engine.New(backend, engine.Settings{TxRetries: -1})
				work := newStanding(t)
				first := startCopy(t.Context(), e, delivery, work.handle)
				second := startCopy(t.Context(), e, delivery, work.handle)
				third := startCopy(t.Context(), e, delivery, never(t))
				work.let(end)
				require.True(t, first.ended())
				require.Empty(t, first.result.Outcome)
				require.Equal(t, 2, backend.claimed())
				require.False(t, second.ended())
				require.False(t, third.ended())
				require.True(t, backend.txs[0].closed, "its connection was given back before the next one's turn")

				work.let(succeed)
				require.Equal(t, inbox.OutcomeProcessed, second.result.Outcome)
				require.Equal(t, inbox.OutcomeDuplicate, third.result.Outcome)
				require.Equal(t, 2, backend.claimed())
				require.Zero(t, backend.open())
			})
		})
	}
	t.Run("refused at the claim", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			proceed := make(chan struct{})
			backend := newFakeBackend(func(context.Context) (engine.Answer, error) {
				<-proceed
				return engine.Answer{}, dbError{engine.FaultUnavailable}
			}, claimed)
			e := engine.New(backend, engine.Settings{})
			first := startCopy(t.Context(), e, delivery, never(t))
			second := startCopy(t.Context(), e, delivery, doNothing)
			close(proceed)
			synctest.Wait()
			require.ErrorIs(t, first.err, inbox.ErrUnavailable)
			require.Equal(t, inbox.OutcomeProcessed, second.result.Outcome)
		})
	})
}

func TestAWaitingCopyObeysItsLimits(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		wait time.Duration // InFlightWait
		ends time.Duration // of the context; 0: never
		took time.Duration
		want error
	}{
		{"InFlightWait", 0, 0, 5 * time.Second, inbox.ErrInFlight},
		{"its own InFlightWait", 30 * time.Second, 0, 30 * time.Second, inbox.ErrInFlight},
		{"none", -1, 0, 0, inbox.ErrInFlight},
		{"the context", 0, time.Second, time.Second, context.DeadlineExceeded},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				backend := newFakeBackend()
				e := engine.New(backend, engine.Settings{InFlightWait: tt.wait})
				work := newStanding(t)
				first := startCopy(t.Context(), e, delivery, work.handle)
				ctx := t.Context()
				if tt.ends > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, tt.ends)
					defer cancel()
				}
				began := time.Now()
				result, err := e.Process(ctx, delivery, never(t))
				requireError(t, err, inbox.PhaseClaim, inbox.ErrInFlight, tt.want)
				require.True(t, inbox.IsTransient(err))
				require.Equal(t, tt.took, time.Since(began))
				require.Equal(t, tt.took, result.Wait)
				if tt.ends == 0 {
					require.ErrorContains(t, err, fmt.Sprintf("waited %v (InFlightWait is %v)", tt.took, tt.took))
				}
				require.Equal(t, 1, backend.claimed())
				require.False(t, first.ended())

				last := startCopy(t.Context(), e, delivery, work.handle)
				require.Equal(t, tt.wait == -1, last.ended())
				work.let(succeed) // who gave up is not waited for
				require.True(t, first.ended())
				require.True(t, last.ended())
				n, _ := e.InFlight()
				require.Zero(t, n)
			})
		})
	}
}

// A copy that waited in this process has only the rest of its time for another one.
func TestWaitingHereAndElsewhereIsBoundedTogether(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		backend := newFakeBackend(claimed, free)
		e := engine.New(backend, engine.Settings{})
		work := newStanding(t)
		startCopy(t.Context(), e, delivery, work.handle)
		began := time.Now()
		second := startCopy(t.Context(), e, delivery, never(t))
		time.Sleep(3 * time.Second)
		work.let(func() error { return errors.New("declined") })
		require.False(t, second.ended())
		require.Equal(t, 2*time.Second, backend.waited(1), "what is left of it, for a claim that cannot do without waiting")
		time.Sleep(2 * time.Second)
		synctest.Wait()
		require.True(t, second.ended())
		requireError(t, second.err, inbox.PhaseClaim, inbox.ErrInFlight)
		require.Equal(t, 5*time.Second, second.result.Wait)
		require.Equal(t, 5*time.Second, time.Since(began))
	})
}

func TestInFlightTellsNumberAndAge(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := engine.New(newFakeBackend(), engine.Settings{InFlightWait: time.Hour})
		requireInFlight := func(messages int, oldest time.Duration) {
			t.Helper()
			n, age := e.InFlight()
			require.Equal(t, messages, n)
			require.Equal(t, oldest, age)
		}
		requireInFlight(0, 0)
		list := manyDeliveries(2)
		one, two := newStanding(t), newStanding(t)
		startCopy(t.Context(), e, list[0], one.handle)
		requireInFlight(1, 0)
		time.Sleep(time.Minute)
		startCopy(t.Context(), e, list[1], two.handle)
		startCopy(t.Context(), e, list[0], one.handle)
		time.Sleep(time.Second)
		requireInFlight(2, 61*time.Second)
		one.let(func() error { return errors.New("declined") })
		requireInFlight(2, time.Second)
		time.Sleep(time.Second)
		two.let(succeed)
		requireInFlight(1, time.Second)
		one.let(succeed)
		requireInFlight(0, 0)
	})
}

// probingBackend is a fakeBackend that can be asked whether a key still is in flight.
type probingBackend struct {
	*fakeBackend
	probe  func(ctx context.Context) (*engine.Row, bool, error)
	probes int
}

func (b *probingBackend) Probe(ctx context.Context, c *engine.Claim) (*engine.Row, bool, error) {
	if c.Key != delivery.StorageKey() {
		return nil, false, errors.New("another key")
	}
	b.probes++
	return b.probe(ctx)
}

// A key that is in flight elsewhere is asked for by its claim once, and by a statement that needs no transaction then.
func TestABusyKeyIsProbed(t *testing.T) {
	t.Parallel()
	no := func(context.Context) (*engine.Row, bool, error) { return nil, false, nil }
	yes := func(context.Context) (*engine.Row, bool, error) { return nil, true, nil }
	for _, tt := range []struct {
		name   string
		steps  []step
		probe  func(ctx context.Context) (*engine.Row, bool, error)
		claims int
		probed func(n int) bool
		err    error
	}{
		{"never before a claim", []step{claimed}, no, 1, func(n int) bool { return n == 0 }, nil},
		{"never for a duplicate", []step{taken(rowOf(delivery))}, no, 1, func(n int) bool { return n == 0 }, nil},
		{"busy all the time", []step{free}, no, 1, func(n int) bool { return n > 5*10 && n < 5*30 }, inbox.ErrInFlight},
		{"free at once", []step{free, claimed}, yes, 2, func(n int) bool { return n == 1 }, nil},
		{"no answer", []step{free, claimed}, func(context.Context) (*engine.Row, bool, error) { return nil, false, errors.New("connection refused") }, 2, func(n int) bool { return n == 1 }, nil},
		{"handled meanwhile", []step{free}, func(context.Context) (*engine.Row, bool, error) { return rowOf(delivery), false, nil }, 1, func(n int) bool { return n == 1 }, nil},
		{"other content meanwhile", []step{free}, func(context.Context) (*engine.Row, bool, error) {
			row := rowOf(delivery)
			row.Fingerprint[0]++
			return row, false, nil
		}, 1, func(n int) bool { return n == 1 }, inbox.ErrMismatch},
		{"taken again", []step{free, free, claimed}, yes, 3, func(n int) bool { return n == 2 }, nil},
		{"after an error of the database", []step{func(context.Context) (engine.Answer, error) {
			return engine.Answer{}, dbError{engine.FaultBusy}
		}, claimed}, yes, 2, func(n int) bool { return n == 1 }, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				backend := &probingBackend{newFakeBackend(tt.steps...), tt.probe, 0}
				began := time.Now()
				result, err := engine.New(backend, engine.Settings{}).Process(t.Context(), delivery, use)
				require.Equal(t, tt.claims, backend.claimed())
				require.True(t, tt.probed(backend.probes), backend.probes)
				require.Equal(t, time.Since(began), result.Wait)
				if tt.err != nil {
					requireError(t, err, inbox.PhaseClaim, tt.err)
					if errors.Is(err, inbox.ErrInFlight) {
						require.Equal(t, 5*time.Second, result.Wait)
					}
					return
				}
				require.NoError(t, err)
			})
		})
	}
	t.Run("until the context ends", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			backend := &probingBackend{newFakeBackend(free), no, 0}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			began := time.Now()
			_, err := engine.New(backend, engine.Settings{}).Process(ctx, delivery, never(t))
			requireError(t, err, inbox.PhaseClaim, inbox.ErrInFlight, context.DeadlineExceeded)
			require.Equal(t, time.Second, time.Since(began))
			require.Equal(t, 1, backend.claimed())
		})
	})
}

// Copies of a few messages, some of which fail, with everything at once; for the race detector.
func TestCopiesRace(t *testing.T) {
	t.Parallel()
	const messages, copies = 40, 16
	backend := newFakeBackend()
	e := engine.New(backend, engine.Settings{DoneKeys: messages / 2, InFlightWait: time.Minute})
	list := manyDeliveries(messages)
	var mu sync.Mutex
	inside, handled := map[string]int{}, map[string]int{}
	var wg sync.WaitGroup
	for n := range copies {
		wg.Go(func() {
			for _, d := range list {
				func() {
					defer func() { _ = recover() }()
					_, _ = e.Process(t.Context(), d, func(context.Context) ([]*message.Message, error) {
						mu.Lock()
						inside[d.Key.ID]++
						if inside[d.Key.ID] > 1 {
							t.Error("two copies at once")
						}
						handled[d.Key.ID]++
						times := handled[d.Key.ID]
						mu.Unlock()
						defer func() {
							mu.Lock()
							inside[d.Key.ID]--
							mu.Unlock()
						}()
						runtime.Gosched()
						switch times {
						case 1:
							return nil, errors.New("declined")
						case 2:
							panic("index out of range")
						}
						return nil, nil
					})
				}()
				if n == 0 {
					e.ConnectionMet()
				}
				_, _ = e.InFlight()
			}
		})
	}
	wg.Wait()
	require.Zero(t, backend.open())
	n, _ := e.InFlight()
	require.Zero(t, n)
	for _, d := range list {
		require.GreaterOrEqual(t, handled[d.Key.ID], 3)
	}
}
