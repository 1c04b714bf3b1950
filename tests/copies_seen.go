package tests

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	inbox "github.com/watermill-contrib/watermill-inbox"
)

// seen are the cases about copies that are answered without the database, or wait for each other without it.
func (s *suite) seen() []testCase {
	cases := []testCase{
		{"A7_SeenMessagesOfConsumersAndSourcesAreKeptApart", s.a7Seen},
		{"A8_OtherPayloadOfASeenMessage", s.a8Seen},
		{"B10_SavepointRolledBackAndTheMessageSeen", s.b10SavepointSeen},
	}
	for _, size := range []int{1, 8} {
		pool := fmt.Sprintf("OnAPoolOf%d", size)
		cases = append(cases,
			testCase{"A1_FourCopiesTheFirstFails" + pool, s.fourCopies(size, inbox.OutcomeFailed, func() error { return errHandler })},
			testCase{"A3_FourCopies" + pool, s.fourCopies(size, "", nil)},
			testCase{"B5_FourCopiesTheFirstPanics" + pool, s.fourCopies(size, inbox.OutcomePanicked, func() error { panic("index out of range") })},
			testCase{"B5_FourCopiesTheFirstExits" + pool, s.fourCopies(size, inbox.OutcomePanicked, func() error {
				runtime.Goexit()
				return nil
			})},
			testCase{"B7_FourCopiesOfManyMessages" + pool, s.b7FourCopies(size)},
		)
	}
	if s.Server {
		cases = append(cases,
			testCase{"B4_RewoundAndItsConnectionsLost", s.b4Rewound},
			testCase{"B4_RewoundAndAConnectionIsNew", s.b4NewConnection},
			testCase{"B4_SeenMessagesNeedNoServer", s.b4Seen},
		)
	}
	return cases
}

// see has a message handled and makes sure that a copy of it is answered without the database: the first message on a
// new connection is not.
func (r *rig) see(t *testing.T, msg *message.Message) {
	t.Helper()
	for range 2 {
		require.NoError(t, r.handle(msg.Copy(), r.writes("pay")))
	}
}

// rewind takes the database back to before all messages.
func (r *rig) rewind(t *testing.T) {
	t.Helper()
	r.alter(t, "DELETE FROM "+r.Memory)
	r.alter(t, "DELETE FROM "+r.Effects)
}

// requireSeen delivers a copy that must be answered without the database, which would know nothing of it.
func (r *rig) requireSeen(t *testing.T, msg *message.Message) {
	t.Helper()
	require.Zero(t, r.Rows(t))
	require.NoError(t, r.handle(msg.Copy(), r.writes("pay")))
	require.Zero(t, r.Rows(t), "the database was asked")
}

func (s *suite) a7Seen(t *testing.T) {
	env := s.open(t, Options{PoolSize: 1})
	in, err := inbox.New(env.Store, inbox.Config{Identity: func(msg *message.Message) (source, id string, err error) {
		return msg.Metadata.Get("source"), msg.UUID, nil
	}})
	require.NoError(t, err)
	msg := newMessage("order 42")
	for _, consumer := range []string{"charge", "mail"} {
		for _, source := range []string{"", "shop", "mall"} {
			name := consumer + " " + source
			handle := in.As(consumer)(func(msg *message.Message) ([]*message.Message, error) {
				return nil, env.Write(msg.Context(), name)
			})
			for range 3 {
				delivered := msg.Copy()
				delivered.Metadata.Set("source", source)
				_, err := handle(delivered)
				require.NoError(t, err)
			}
			require.Equal(t, 1, env.Count(t, name))
		}
	}
	require.Equal(t, 6, env.Rows(t))
}

func (s *suite) a8Seen(t *testing.T) {
	right, wrong := reused()
	r := s.rig(t, Options{PoolSize: 1}, inbox.Config{})
	r.see(t, right)
	r.rewind(t)
	for range 2 {
		r.refused(t, wrong, inbox.ErrMismatch)
		r.requireSeen(t, right)
	}
	r.told(t, map[inbox.Outcome]int{inbox.OutcomeProcessed: 1, inbox.OutcomeDuplicate: 3, inbox.OutcomeMismatch: 2})

	r = s.rig(t, Options{PoolSize: 1}, inbox.Config{Mismatch: inbox.MismatchReport})
	r.see(t, right)
	r.rewind(t)
	r.requireSeen(t, wrong)
	r.requireSeen(t, right)
	r.told(t, map[inbox.Outcome]int{inbox.OutcomeProcessed: 1, inbox.OutcomeDuplicate: 2, inbox.OutcomeMismatch: 1})
}

// b10SavepointSeen: what is undone inside the handler's transaction is not undone for the memory, nor remembered of a
// handler that fails behind it.
func (s *suite) b10SavepointSeen(t *testing.T) {
	r := s.rig(t, Options{PoolSize: 1}, inbox.Config{})
	require.NoError(t, r.handle(newMessage("warm"), r.writes("warm")))
	undoes := func(then error) message.HandlerFunc {
		return r.writesThen("pay", func(msg *message.Message) error {
			for _, step := range []func() error{
				func() error { return r.Exec(msg.Context(), "SAVEPOINT attempt") },
				func() error { return r.Write(msg.Context(), "undone") },
				func() error { return r.Exec(msg.Context(), "ROLLBACK TO SAVEPOINT attempt") },
			} {
				if err := step(); err != nil {
					return err
				}
			}
			return then
		})
	}
	msg := newMessage("pay 10")
	require.ErrorIs(t, r.handle(msg.Copy(), undoes(errHandler)), errHandler)
	require.Equal(t, 1, r.Total(t), "a failed handler leaves nothing")
	require.NoError(t, r.handle(msg.Copy(), undoes(nil)), "its copy is handled")
	require.Equal(t, 1, r.Count(t, "pay"))
	for range 2 {
		require.NoError(t, r.handle(msg.Copy(), undoes(errHandler)), "the next one is a duplicate")
	}
	require.Equal(t, 1, r.Count(t, "pay"))
	require.Zero(t, r.Count(t, "undone"))
	require.Equal(t, 2, r.Rows(t))
	r.rewind(t)
	r.requireSeen(t, msg)
}

// fourCopies delivers four copies of a message at once. The first one in the handler ends as given; the next one is not
// told of it.
func (s *suite) fourCopies(size int, outcome inbox.Outcome, end func() error) func(*testing.T) {
	return func(t *testing.T) {
		r := s.rig(t, Options{PoolSize: size}, inbox.Config{})
		const messages, copies = 10, 4
		for range messages {
			msg := newMessage("pay 10")
			var attempts, failed, panicked atomic.Int64
			handler := r.writesThen(msg.UUID, func(*message.Message) error {
				if attempts.Add(1) == 1 && end != nil {
					return end()
				}
				return nil
			})
			start := make(chan struct{})
			var wg sync.WaitGroup
			for range copies {
				wg.Go(func() {
					returned := false
					defer func() {
						_ = recover()
						if !returned {
							panicked.Add(1)
						}
					}()
					<-start
					err := r.handle(msg.Copy(), handler)
					returned = true
					if err != nil {
						failed.Add(1)
						if !errors.Is(err, errHandler) {
							t.Error(err)
						}
					}
				})
			}
			close(start)
			within(t, patience, "four copies", wg.Wait)
			if outcome == "" {
				require.EqualValues(t, 1, attempts.Load())
			} else {
				require.EqualValues(t, 2, attempts.Load())
				require.EqualValues(t, 1, failed.Load()+panicked.Load())
			}
			require.Equal(t, 1, r.Count(t, msg.UUID))
		}
		want := map[inbox.Outcome]int{inbox.OutcomeProcessed: messages, inbox.OutcomeDuplicate: messages * (copies - 1)}
		if outcome != "" {
			want[outcome], want[inbox.OutcomeDuplicate] = messages, messages*(copies-2)
		}
		r.told(t, want)
		require.Equal(t, messages, r.Rows(t))
		if outcome != inbox.OutcomePanicked {
			require.Empty(t, r.logs.at("ERROR"), "nobody is told of the losers")
		}
		r.requireIdle(t)
	}
}

// b7FourCopies delivers four copies of many messages at once. Some fail and some panic at first; each is delivered again
// until it is acked. No copy waits with a connection in hand, or the pool of one would never come to the end.
func (s *suite) b7FourCopies(size int) func(*testing.T) {
	return func(t *testing.T) {
		r := s.rig(t, Options{PoolSize: size}, inbox.Config{})
		const messages, copies = 40, 4
		var wg sync.WaitGroup
		errs := make([]error, messages*copies)
		for i := range messages {
			msg := newMessage("pay")
			var attempts atomic.Int64
			handler := r.writesThen(fmt.Sprint("pay", i), func(*message.Message) error {
				switch n := attempts.Add(1); {
				case i%5 == 0 && n == 1:
					panic("index out of range")
				case i%3 == 0 && n <= 2:
					return errHandler
				}
				return nil
			})
			for copyNo := range copies {
				wg.Go(func() { errs[i*copies+copyNo] = r.redeliver(t.Context(), msg, handler) })
			}
		}
		within(t, 2*patience, "deliveries", wg.Wait)
		for _, err := range errs {
			require.NoError(t, err)
		}
		for i := range messages {
			require.Equal(t, 1, r.Count(t, fmt.Sprint("pay", i)))
		}
		require.Equal(t, messages, r.Rows(t))
		require.Equal(t, messages, r.events.count(inbox.OutcomeProcessed))
		require.Equal(t, messages*(copies-1), r.events.count(inbox.OutcomeDuplicate))
		r.requireIdle(t)
	}
}

// b4Rewound has a database that lost a message that was acked, and all connections with it: a fail-over to a server that
// is behind. The broker is rewound; nothing that was learnt before may stand in the way.
func (s *suite) b4Rewound(t *testing.T) {
	env, proxy := s.behindProxy(t, Options{PoolSize: 1})
	r := newRig(t, env, inbox.Config{})
	msg := newMessage("pay 10")
	r.see(t, msg)
	r.rewind(t)
	r.requireSeen(t, msg) // nothing has shown yet

	proxy.CutAll()
	require.NoError(t, r.handle(newMessage("another"), r.writes("another")))
	require.NoError(t, r.handle(msg.Copy(), r.writes("pay")))
	require.Equal(t, 1, r.Count(t, "pay"), "the copy is handled")
	require.NoError(t, r.handle(msg.Copy(), r.writes("pay")))
	require.Equal(t, 1, r.Count(t, "pay"))
	r.requireIdle(t)
}

// b4NewConnection is the same without any error: a pool that grows or replaces a connection meets the other server.
func (s *suite) b4NewConnection(t *testing.T) {
	r := s.rig(t, Options{PoolSize: 2}, inbox.Config{})
	msg := newMessage("pay 10")
	r.see(t, msg)
	r.rewind(t)
	r.requireSeen(t, msg)

	stop := newGate(t)
	first := r.start(newMessage("another"), stop.after(r.writes("another")))
	stop.wait(t)
	require.NoError(t, r.handle(newMessage("third"), r.writes("third")), "which takes the second connection of the pool")
	require.NoError(t, r.handle(msg.Copy(), r.writes("pay")))
	require.Equal(t, 1, r.Count(t, "pay"), "the copy is handled")
	stop.open()
	require.NoError(t, first.end(t))
	r.requireIdle(t)
}

// b4Seen has copies come while the server cannot be reached: what is known to be done is acked; recorded messages are in
// the database only.
func (s *suite) b4Seen(t *testing.T) {
	env, proxy := s.behindProxy(t, Options{PoolSize: 1})
	r := newRig(t, env, inbox.Config{})
	done, recorded := newMessage("pay 10"), newMessage("pay 20")
	r.see(t, done)
	produce := r.Middleware(r.producing("produced", 2))
	produced, err := produce(recorded.Copy())
	require.NoError(t, err)
	require.Len(t, produced, 2)

	proxy.Refuse(true)
	proxy.CutAll()
	for range 3 {
		require.NoError(t, r.handleWithin(t, done.Copy(), r.writes("pay")))
	}
	var again []*message.Message
	within(t, patience, "a copy", func() { again, err = produce(recorded.Copy()) })
	require.ErrorIs(t, err, inbox.ErrUnavailable, "not without its messages")
	require.True(t, inbox.IsTransient(err))
	require.Empty(t, again)
	require.ErrorIs(t, r.handleWithin(t, done.Copy(), r.writes("pay")), inbox.ErrUnavailable, "the connection was lost: nothing is known any more")

	proxy.Refuse(false)
	again, err = produce(recorded.Copy())
	require.NoError(t, err)
	require.Equal(t, uuids(produced), uuids(again))
	require.NoError(t, r.handle(done.Copy(), r.writes("pay")))
	require.Equal(t, 1, r.Count(t, "pay"))
	require.Equal(t, 1, r.Count(t, "produced"))
	require.Equal(t, 2, r.events.count(inbox.OutcomeProcessed))
	r.requireIdle(t)
}
