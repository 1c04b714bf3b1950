package tests

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"strconv"
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

// operationFlights are the cases about operations that are in hand at the same time.
func (s *suite) operationFlights() []testCase {
	cases := []testCase{
		{"F6_EightMessagesOnAPoolOfEight", s.f6},
		{"F6_EachIsolationLevel", s.f6Levels},
		{"F6_StormOfMessagesOfOneOperation", s.f6Storm},
		{"F6_WaitIsBounded", s.f6Bounded},
		{"F6_TakesOverFromAFailedHolder", s.f6TakesOver},
		{"F6_HolderIsKilled", s.f6Killed},
		{"F6_StartsAgainWithTheMessageAsItCame", s.f6Restored},
		{"F7_TwoOrdersByDo", s.f7(false)},
		{"F7_TwoOrdersByDoAll", s.f7(true)},
		{"F7_TwoOrdersOfCalls", s.f7Alone},
	}
	if s.Server { // an embedded database waits for its one writer with a connection in hand
		cases = append(cases, testCase{"D3_OperationAndMessageOfOneName", s.operationNamedAsMessage})
		cases = append(cases, testCase{"F6_WaitingHoldsNoConnection", s.f6Connections})
		cases = append(cases, testCase{"F6_SerializationFailureInsideAnOperation", s.f6Serialization})
	}
	return cases
}

// f6 has as many messages of one operation at once as there are connections.
func (s *suite) f6(t *testing.T) {
	bothWays(t, func(t *testing.T, claims bool) {
		r := s.opRig(t, Options{PoolSize: 8}, businesskey.Config{}, claims)
		for round := range Scale(100, 20) {
			id := "pay-" + strconv.Itoa(round)
			start := make(chan struct{})
			errs := make([]error, 8)
			var wg sync.WaitGroup
			for i := range errs {
				wg.Go(func() {
					<-start
					_, errs[i] = r.operate(command(id, "pay 10"), r.writes(id))
				})
			}
			close(start)
			within(t, patience, "eight messages of one operation", wg.Wait)
			require.NoError(t, errors.Join(errs...))
			require.Equal(t, 1, r.Count(t, id))
			require.Equal(t, 8*(round+1), r.Rows(t))
			require.Equal(t, round+1, r.operationsKept(t))
		}
		r.requireIdle(t)
	})
}

// f6Levels has messages of one operation at once, each delivered twice, at each isolation level. What meets a
// serialization failure too often is delivered again, as a broker would.
func (s *suite) f6Levels(t *testing.T) {
	for _, level := range s.Isolation {
		t.Run(strings.ReplaceAll(level.String(), " ", ""), func(t *testing.T) {
			bothWays(t, func(t *testing.T, claims bool) {
				r := s.opRig(t, Options{PoolSize: 8, Config: sqlinbox.Config{Isolation: level}}, businesskey.Config{}, claims)
				rounds := Scale(100, 20)
				for round := range rounds {
					id := "pay-" + strconv.Itoa(round)
					start := make(chan struct{})
					errs := make([]error, 16)
					var wg sync.WaitGroup
					messages := [8]*message.Message{}
					for i := range messages {
						messages[i] = command(id, "pay 10")
					}
					for i := range errs {
						wg.Go(func() {
							<-start
							for {
								_, errs[i] = r.operate(messages[i/2].Copy(), r.writes(id))
								if !errors.Is(errs[i], inbox.ErrSerialization) {
									return
								}
							}
						})
					}
					close(start)
					within(t, patience, "the messages of one operation", wg.Wait)
					require.NoError(t, errors.Join(errs...))
				}
				require.Equal(t, rounds, r.Total(t))
				require.Equal(t, rounds, r.scalar(t, "SELECT count(DISTINCT name) FROM "+r.Effects))
				require.Equal(t, 8*rounds, r.Rows(t))
				require.Equal(t, rounds, r.operationsKept(t))
				require.Equal(t, rounds, r.events.count(inbox.OutcomeProcessed))
				require.Equal(t, 15*rounds, r.events.count(inbox.OutcomeDuplicate))
				r.requireIdle(t)
			})
		})
	}
}

const operationStormTask = "storm of operations"

// f6Storm is the storm of A2 with one operation where that has one message: every delivery is a message of its own.
func (s *suite) f6Storm(t *testing.T) {
	bothWays(t, func(t *testing.T, claims bool) {
		rounds := Scale(200, 20)
		env := s.open(t, Options{})
		sum := s.runOperationStorm(t, env, rounds, claims)
		require.Empty(t, sum.Other, "errors that are neither the handler's own nor one of the inbox's")
		deliveries := rounds * stormCopies
		require.Equal(t, 0, env.scalar(t, "SELECT count(*) FROM (SELECT name FROM "+env.Effects+" GROUP BY name HAVING count(*) > 1) AS twice"),
			"operations with more than one effect")
		require.Equal(t, rounds, env.Total(t), "effects")
		require.Equal(t, rounds, env.operationsKept(t))
		require.Equal(t, deliveries, env.Rows(t), "memory rows")
		require.Equal(t, deliveries, sum.Acked)
		require.Equal(t, rounds, sum.Processed)
		require.Equal(t, deliveries-rounds, sum.Duplicate)
		require.Positive(t, sum.Failed, "no handler failed: the storm was too mild to prove anything")
		t.Logf("%d operations, %d messages: %+v", rounds, deliveries, sum)
	})
}

// runOperationStorm starts the processes and is the barrier between them, as runStorm is.
func (s *suite) runOperationStorm(t *testing.T, env *Env, rounds int, claims bool) (sum stormReport) {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close() //nolint:errcheck // nobody listens any more
	require.NoError(t, listener.(*net.TCPListener).SetDeadline(time.Now().Add(time.Minute)))

	var children []*inboxtest.Child
	for n := range stormProcesses {
		children = append(children, s.startChild(t, env, task{Name: operationStormTask, Args: map[string]string{
			"address": listener.Addr().String(), "number": strconv.Itoa(n), "claims": strconv.FormatBool(claims),
		}}, ""))
	}
	alive := func(err error) {
		if err != nil { // the children know more
			for _, child := range children {
				_ = child.Kill()
				t.Log(child.Output())
			}
			require.NoError(t, err)
		}
	}
	var lines []*stormLine
	for range stormProcesses {
		conn, err := listener.Accept()
		alive(err)
		defer conn.Close() //nolint:errcheck // the end of the test
		lines = append(lines, newStormLine(conn))
	}
	for round := range rounds {
		for _, line := range lines {
			alive(line.Encode(fmt.Sprint("operation ", round)))
		}
		var ready bool
		for _, line := range lines {
			alive(line.Decode(&ready))
		}
	}
	for _, line := range lines {
		alive(line.Encode(""))
		var report stormReport
		alive(line.Decode(&report))
		sum.add(report)
	}
	for _, child := range children {
		require.NoError(t, child.Wait(t.Context()))
	}
	return sum
}

// operationStormChild is one of the processes.
func (s *suite) operationStormChild(t *testing.T, this task) {
	number, err := strconv.Atoi(this.Args["number"])
	require.NoError(t, err)
	r := s.opRig(t, Options{Space: this.Space, PoolSize: stormPool}, businesskey.Config{}, this.Args["claims"] == "true")
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", this.Args["address"])
	require.NoError(t, err)
	defer conn.Close() //nolint:errcheck // the end of the process

	copies := stormCopies / stormProcesses
	if number < stormCopies%stormProcesses {
		copies++
	}
	p := &stormProcess{rig: r.rig}
	line := newStormLine(conn)
	for {
		var id string
		require.NoError(t, line.Decode(&id))
		if id == "" {
			break
		}
		var wg sync.WaitGroup
		for range copies {
			wg.Go(func() { p.deliverOperation(r.keys, id) })
		}
		wg.Wait()
		require.NoError(t, line.Encode(true))
	}
	require.NoError(t, line.Encode(p.sum()))
}

// deliverOperation delivers one message of the operation until it is acked.
func (p *stormProcess) deliverOperation(keys *businesskey.Keys, operation string) {
	msg := command(operation, "pay 10")
	handler := keys.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		if err := p.Write(msg.Context(), operation); err != nil {
			return nil, err
		}
		if p.calls.Add(1)%3 == 0 {
			return nil, errHandler
		}
		return nil, nil
	})
	for acked := false; !acked; {
		err := p.handle(msg.Copy(), handler)
		p.mu.Lock()
		r := &p.report
		switch {
		case err == nil:
			acked = true
			r.Acked++
		case errors.Is(err, errHandler):
			r.Failed++
		case errors.Is(err, inbox.ErrInFlight):
			r.InFlight++
		case errors.Is(err, inbox.ErrSerialization):
			r.Serialization++
		default:
			acked = true // it would go on for ever
			if len(r.Other) < 5 {
				r.Other = append(r.Other, err.Error())
			}
		}
		p.mu.Unlock()
	}
}

// holding has r hold the operation pay-1 outside any message until the gate is opened; then it gives what fn gives.
func holding(t *testing.T, r *opRig, stop *gate, end error) *inHand {
	t.Helper()
	d := &inHand{done: make(chan struct{})}
	go func() {
		defer close(d.done)
		_, d.err = r.keys.Do(context.Background(), businesskey.Operation{Scope: consumer, ID: "pay-1", Content: []byte("pay 10")},
			func(ctx context.Context) ([]byte, error) {
				if err := r.Write(ctx, "pay"); err != nil {
					return nil, err
				}
				stop.reached <- struct{}{}
				<-stop.opened
				return nil, end
			})
	}()
	stop.wait(t)
	return d
}

// f6Bounded has a message wait for an operation that a call holds, no longer than it may.
func (s *suite) f6Bounded(t *testing.T) {
	for name, wait := range map[string]time.Duration{"Shortly": 150 * time.Millisecond, "NotAtAll": -1} {
		t.Run(name, func(t *testing.T) {
			s.inAllPlaces(t, Options{Config: sqlinbox.Config{InFlightWait: wait}}, func(t *testing.T, r, second *opRig) {
				stop := newGate(t)
				holder := holding(t, r, stop, nil)
				msg := command("pay-1", "pay 10")
				err := second.startOperation(msg.Copy(), second.writes("pay")).end(t)
				require.ErrorIs(t, err, inbox.ErrInFlight)
				require.True(t, inbox.IsTransient(err))
				require.False(t, inbox.IsPermanent(err))
				told := r.events.last(t)
				require.Equal(t, inbox.OutcomeInFlight, told.Outcome)
				require.Less(t, told.Duration, 3*time.Second, "the default is 5 s")
				if s.Server {
					require.Equal(t, inbox.LayerOperation, told.Layer)
					require.GreaterOrEqual(t, told.Wait, wait*9/10)
				}
				require.Eventually(t, func() bool { return second.InUse() == 0 || second == r }, patience, time.Millisecond)
				_, err = second.keys.Do(t.Context(), businesskey.Operation{Scope: consumer, ID: "pay-1", Content: []byte("pay 10")}, second.pay("pay", ""))
				require.ErrorIs(t, err, inbox.ErrInFlight, "a call neither")
				stop.open()
				require.NoError(t, holder.end(t))
				_, err = second.operate(msg.Copy(), second.writes("pay"))
				require.NoError(t, err, "the redelivery finds it done")
				require.Equal(t, inbox.LayerOperation, r.events.last(t).Layer)
				require.Equal(t, 1, r.Total(t))
				r.requireIdle(t)
			})
		})
	}
}

// f6TakesOver has the holder roll back while a message waits.
func (s *suite) f6TakesOver(t *testing.T) {
	s.inAllPlaces(t, Options{}, func(t *testing.T, r, second *opRig) {
		stop := newGate(t)
		holder := holding(t, r, stop, errHandler)
		waiting := second.startOperation(command("pay-1", "pay 10"), second.writes("pay"))
		s.meet(t, r.rig, second.rig, waiting)
		require.False(t, waiting.ended())
		stop.open()
		require.ErrorIs(t, holder.end(t), errHandler)
		require.NoError(t, waiting.end(t))
		require.Equal(t, 1, r.Total(t))
		require.Equal(t, 1, r.operationsKept(t))
		r.told(t, map[inbox.Outcome]int{inbox.OutcomeProcessed: 1})
		r.requireIdle(t)
	})
}

const operationHoldingTask = "hold an operation"

// f6Killed kills the process that holds the operation.
func (s *suite) f6Killed(t *testing.T) {
	bothWays(t, func(t *testing.T, claims bool) {
		r := s.opRig(t, Options{}, businesskey.Config{}, claims)
		child := s.startChild(t, r.Env, task{Name: operationHoldingTask}, "holding")
		require.NoError(t, child.WaitPoint(t.Context()))
		waiting := r.startOperation(command("pay-1", "pay 10"), r.writes("pay"))
		require.NoError(t, child.Kill())
		require.NoError(t, waiting.end(t))
		require.Equal(t, 1, r.Total(t))
		require.Equal(t, 1, r.operationsKept(t))
	})
}

// holdOperation is that process.
func (s *suite) holdOperation(t *testing.T, this task) {
	r := s.opRig(t, Options{Space: this.Space, DSN: this.DSN}, businesskey.Config{}, false)
	_, _ = r.keys.Do(t.Context(), businesskey.Operation{Scope: consumer, ID: "pay-1", Content: []byte("pay 10")}, func(ctx context.Context) ([]byte, error) {
		if err := r.Write(ctx, "pay"); err != nil {
			return nil, err
		}
		inboxtest.Point("holding")
		return nil, nil
	})
}

// f6Connections has messages wait for an operation in a process with one connection: it is for everybody else.
func (s *suite) f6Connections(t *testing.T) {
	bothWays(t, func(t *testing.T, claims bool) {
		o := Options{PoolSize: 1, Config: sqlinbox.Config{InFlightWait: time.Hour}}
		r := s.opRig(t, o, businesskey.Config{}, claims)
		second := s.opBeside(t, r, o)
		stop := newGate(t)
		holder := holding(t, r, stop, nil)
		var waiting []*inHand
		for range 8 {
			waiting = append(waiting, second.startOperation(command("pay-1", "pay 10"), second.writes("pay")))
		}
		s.meet(t, r.rig, second.rig, waiting[0])
		for n := range 20 {
			name := fmt.Sprint("other ", n)
			stranger := second.startOperation(command(name, "pay 10"), second.writes(name))
			require.NoError(t, stranger.end(t), "a message that has nothing to do with the operation")
			require.Equal(t, 1, r.Count(t, name))
		}
		free := 0
		require.Eventually(t, func() bool {
			if second.InUse() == 0 {
				free++
			}
			return free >= 20
		}, patience, time.Millisecond, "the connection is free most of the time")
		for _, d := range waiting {
			require.False(t, d.ended())
		}
		stop.open()
		require.NoError(t, holder.end(t))
		for _, d := range waiting {
			require.NoError(t, d.end(t))
		}
		require.Equal(t, 1, r.Count(t, "pay"))
		r.told(t, map[inbox.Outcome]int{inbox.OutcomeProcessed: 20, inbox.OutcomeDuplicate: 8})
	})
}

// operationNamedAsMessage has a message in hand whose id is another message's operation id: they do not meet.
func (s *suite) operationNamedAsMessage(t *testing.T) {
	s.inAllPlaces(t, Options{Config: sqlinbox.Config{InFlightWait: -1}}, func(t *testing.T, r, second *opRig) {
		named := command("another", "pay 10")
		named.UUID = "pay-1"
		stop := newGate(t)
		first := r.startOperation(named, stop.after(r.writes("named")))
		stop.wait(t)
		require.NoError(t, second.startOperation(command("pay-1", "pay 10"), second.writes("pay")).end(t))
		stop.open()
		require.NoError(t, first.end(t))
		require.Equal(t, 2, r.Rows(t))
		require.Equal(t, 2, r.operationsKept(t))
	})
}

// f6Restored has a handler spoil its message before it meets an operation that is in flight.
func (s *suite) f6Restored(t *testing.T) {
	r := s.opRig(t, Options{}, businesskey.Config{}, false)
	calls := 0
	type mark struct{}
	stop := newGate(t)
	var holder *inHand
	if s.Server {
		holder = holding(t, r, stop, errHandler)
	}
	msg := newMessage("pay 10")
	msg.Metadata.Set("hop", "1")
	ctx := context.WithValue(t.Context(), mark{}, "the message's own")
	msg.SetContext(ctx)
	uuid := msg.UUID
	met := make(chan struct{})
	d := r.start(msg, func(msg *message.Message) ([]*message.Message, error) {
		calls++
		if string(msg.Payload) != "pay 10" || msg.Metadata.Get("hop") != "1" || msg.UUID != uuid || msg.Context().Value(mark{}) != "the message's own" {
			return nil, fmt.Errorf("call %d got %+v", calls, msg)
		}
		ctx := msg.Context()
		copy(msg.Payload, "xxx")
		msg.Metadata.Set("hop", "2")
		msg.UUID = "spoilt"
		msg.SetContext(context.WithValue(ctx, mark{}, "spoilt"))
		if err := r.Write(ctx, "before"); err != nil {
			return nil, err
		}
		_, err := r.keys.Do(ctx, businesskey.Operation{ID: "pay-1", Content: []byte("pay 10")}, r.pay("pay", ""))
		if calls == 1 {
			close(met)
		}
		return nil, err
	})
	await(t, met, "the first call")
	stop.open()
	if holder != nil {
		require.ErrorIs(t, holder.end(t), errHandler)
	}
	require.NoError(t, d.end(t))
	if s.Server {
		require.Equal(t, 2, calls)
	}
	require.Equal(t, ctx, msg.Context(), "the context is given back")
	require.Equal(t, 1, r.Count(t, "before"))
	r.requireOnce(t)
}

// f6Serialization has the work of an operation meet a serialization failure: all of it is run again.
func (s *suite) f6Serialization(t *testing.T) {
	for _, level := range s.Isolation[1:] {
		if level == sql.LevelSerializable && !s.AbortsOnError {
			continue // MariaDB's reads lock there: nobody else could be first
		}
		t.Run(level.String(), func(t *testing.T) {
			for _, alone := range []bool{false, true} {
				r := s.opRig(t, Options{Config: sqlinbox.Config{Isolation: level}}, businesskey.Config{}, true)
				counter := stormCounter(r.Env)
				r.alter(t, "CREATE TABLE "+counter+" (n INTEGER NOT NULL)")
				r.alter(t, "INSERT INTO "+counter+" (n) VALUES (0)")
				calls := 0
				work := func(ctx context.Context) error {
					if err := r.Exec(ctx, "SELECT n FROM "+counter); err != nil {
						return err
					}
					if calls++; calls == 1 { // somebody else is first
						if _, err := r.DB.ExecContext(ctx, "UPDATE "+counter+" SET n = n + 10"); err != nil {
							return err
						}
					}
					if err := r.Exec(ctx, "UPDATE "+counter+" SET n = n + 1"); err != nil {
						return err
					}
					return r.Write(ctx, "pay")
				}
				if alone {
					got, err := r.keys.Do(t.Context(), businesskey.Operation{Scope: "http", ID: "1"}, func(ctx context.Context) ([]byte, error) {
						return []byte(strconv.Itoa(calls + 1)), work(ctx)
					})
					require.NoError(t, err)
					require.Equal(t, "2", string(got))
				} else {
					_, err := r.operate(command("pay-1", "pay 10"), func(msg *message.Message) ([]*message.Message, error) {
						err := work(msg.Context())
						msg.Payload = nil
						return nil, err
					})
					require.NoError(t, err)
					require.Equal(t, 1, r.events.last(t).TxRetries)
					_, err = r.operate(command("pay-1", "pay 10"), r.writes("pay"))
					require.NoError(t, err, "the payload of the second run was the right one")
				}
				require.Equal(t, 2, calls)
				require.Equal(t, 11, r.scalar(t, "SELECT n FROM "+counter))
				require.Equal(t, 1, r.Count(t, "pay"))
				require.Equal(t, 1, r.operationsKept(t))
				r.requireIdle(t)
			}
		})
	}
}

// f7 has two handlers claim two operations in opposite orders at the same moment.
func (s *suite) f7(all bool) func(t *testing.T) {
	return func(t *testing.T) {
		s.inBothPlaces(t, Options{}, inbox.Config{}, func(t *testing.T, plain, other *rig) {
			r, second := withKeys(t, plain), withKeys(t, other)
			work := func(r *opRig, ids ...string) message.HandlerFunc {
				return func(msg *message.Message) ([]*message.Message, error) {
					if all {
						return nil, r.doAll(msg.Context(), "", ids)
					}
					for _, id := range ids {
						if _, err := r.keys.Do(msg.Context(), businesskey.Operation{ID: id}, r.pay(id, "")); err != nil {
							return nil, err
						}
					}
					return nil, nil
				}
			}
			rounds := Scale(1000, 20)
			for round := range rounds {
				x, y := fmt.Sprint("X", round), fmt.Sprint("Y", round)
				one := r.start(newMessage("X, Y"), work(r, x, y))
				two := second.start(newMessage("Y, X"), work(second, y, x))
				require.NoError(t, one.end(t), "round %d", round)
				require.NoError(t, two.end(t), "round %d", round)
			}
			r.requirePairs(t, rounds)
			r.told(t, map[inbox.Outcome]int{inbox.OutcomeProcessed: 2 * rounds})
		})
	}
}

// f7Alone does the same by calls outside any message.
func (s *suite) f7Alone(t *testing.T) {
	s.inBothPlaces(t, Options{}, inbox.Config{}, func(t *testing.T, plain, other *rig) {
		r, second := withKeys(t, plain), withKeys(t, other)
		rounds := Scale(1000, 20)
		for round := range rounds {
			x, y := fmt.Sprint("X", round), fmt.Sprint("Y", round)
			errs := make([]error, 2)
			var wg sync.WaitGroup
			wg.Go(func() { errs[0] = r.doAll(context.Background(), "http", []string{x, y}) })
			wg.Go(func() { errs[1] = second.doAll(context.Background(), "http", []string{y, x}) })
			within(t, patience, "two calls", wg.Wait)
			require.NoError(t, errors.Join(errs...), "round %d", round)
		}
		r.requirePairs(t, rounds)
	})
}

func withKeys(t testing.TB, r *rig) *opRig {
	t.Helper()
	keys, err := businesskey.New(r.Store.(inbox.OperationStore), businesskey.Config{})
	require.NoError(t, err)
	return &opRig{rig: r, keys: keys}
}

// doAll pays by DoAll, one effect for each operation.
func (r *opRig) doAll(ctx context.Context, scope string, ids []string) error {
	operations := make([]businesskey.Operation, len(ids))
	for i, id := range ids {
		operations[i] = businesskey.Operation{Scope: scope, ID: id}
	}
	got, err := r.keys.DoAll(ctx, operations, func(ctx context.Context, op businesskey.Operation) ([]byte, error) {
		return []byte("receipt of " + op.ID), r.Write(ctx, op.ID)
	})
	for i, id := range ids {
		if err == nil && string(got[i]) != "receipt of "+id {
			return fmt.Errorf("the result of %s is %q", id, got[i])
		}
	}
	return err
}

// requirePairs asserts that the operations of all rounds have one effect each.
func (r *opRig) requirePairs(t *testing.T, rounds int) {
	t.Helper()
	require.Equal(t, 2*rounds, r.Total(t))
	require.Equal(t, 2*rounds, r.scalar(t, "SELECT count(DISTINCT name) FROM "+r.Effects))
	require.Equal(t, 2*rounds, r.operationsKept(t))
	r.requireIdle(t)
}
