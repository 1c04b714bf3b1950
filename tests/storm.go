package tests

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"net"
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
	stormProcesses = 3
	stormCopies    = 64 // of the message of a round, in all processes together
	stormPool      = 8  // connections of each process
	stormFailures  = 9  // every so many calls of its handler, a process fails one
)

// storm is a number of rounds in which several processes deliver copies of one message at the same moment. A copy that
// is not acked is delivered again until it is, as a broker would.
type storm struct {
	Rounds int
	// Neighbours are messages of their own that each process delivers in every round beside the copies. All handlers
	// update the same business row then, so that transactions of different messages meet.
	Neighbours int
	Level      sql.IsolationLevel
}

// stormReport is what a process saw in all rounds: what the middleware returned, and what the observer was told.
type stormReport struct {
	Acked, InFlight, Failed, Serialization int
	Other                                  []string // errors that nobody should see

	Processed, Duplicate, ToldInFlight, ToldFailed int
	Told                                           int // all events
	TxRetries                                      int
}

func (r *stormReport) add(o stormReport) {
	r.Acked += o.Acked
	r.InFlight += o.InFlight
	r.Failed += o.Failed
	r.Serialization += o.Serialization
	r.Other = append(r.Other, o.Other...)
	r.Processed += o.Processed
	r.Duplicate += o.Duplicate
	r.ToldInFlight += o.ToldInFlight
	r.ToldFailed += o.ToldFailed
	r.Told += o.Told
	r.TxRetries += o.TxRetries
}

func (s *suite) a2(t *testing.T) {
	s.rage(t, storm{Rounds: Scale(1000, 20)})
}

// a6 gives the case of one level.
func (s *suite) a6(level sql.IsolationLevel) testCase {
	return testCase{"A6_StormAt" + strings.ReplaceAll(level.String(), " ", ""), func(t *testing.T) {
		sum := s.rage(t, storm{Rounds: Scale(1000, 20), Neighbours: 3, Level: level})
		if s.Server && level != sql.LevelReadCommitted {
			require.Positive(t, sum.TxRetries, "no transaction met a serialization failure: the storm was too mild to prove anything")
		}
	}}
}

// rage runs the storm and checks what is left of it.
func (s *suite) rage(t *testing.T, storm storm) stormReport {
	t.Helper()
	env := s.open(t, Options{})
	counter := stormCounter(env)
	for _, statement := range []string{"CREATE TABLE " + counter + " (n INTEGER NOT NULL)", "INSERT INTO " + counter + " (n) VALUES (0)"} {
		_, err := env.DB.ExecContext(context.Background(), statement)
		require.NoError(t, err)
	}

	sum := s.runStorm(t, env, storm)
	require.Empty(t, sum.Other, "errors that are neither the handler's own nor one of the inbox's")

	ids := storm.Rounds * (1 + stormProcesses*storm.Neighbours)
	deliveries := storm.Rounds * (stormCopies + stormProcesses*storm.Neighbours)
	require.Equal(t, 0, env.scalar(t, "SELECT count(*) FROM (SELECT name FROM "+env.Effects+" GROUP BY name HAVING count(*) > 1) AS twice"),
		"ids with more than one effect")
	require.Equal(t, ids, env.Total(t), "effects")
	require.Equal(t, ids, env.Rows(t), "memory rows")
	if storm.Neighbours > 0 {
		require.Equal(t, ids, env.scalar(t, "SELECT n FROM "+counter), "the shared row counts every effect once")
	}

	require.Equal(t, ids, sum.Processed)
	require.Equal(t, deliveries, sum.Acked)
	require.Equal(t, deliveries, sum.Processed+sum.Duplicate, "every delivery was acked as the first or as a duplicate")
	require.Equal(t, sum.InFlight, sum.ToldInFlight)
	require.Equal(t, sum.Failed+sum.Serialization, sum.ToldFailed)
	require.Equal(t, sum.Acked+sum.InFlight+sum.Failed+sum.Serialization, sum.Told, "the observer was told once about every delivery")
	require.Positive(t, sum.Failed, "no handler failed: the storm was too mild to prove anything")
	t.Logf("%d ids, %d deliveries: %+v", ids, deliveries, sum)
	return sum
}

func stormCounter(env *Env) string {
	return strings.TrimSuffix(env.Effects, "effects") + "counter"
}

// runStorm starts the processes and is the barrier between them: it sends each of them the id of the next round when
// all have answered the last one.
func (s *suite) runStorm(t *testing.T, env *Env, storm storm) (sum stormReport) {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close() //nolint:errcheck // nobody listens any more

	plan, err := json.Marshal(storm)
	require.NoError(t, err)
	var children []*inboxtest.Child
	for n := range stormProcesses {
		children = append(children, s.startChild(t, env, task{Name: "storm", Args: map[string]string{
			"address": listener.Addr().String(), "number": strconv.Itoa(n), "storm": string(plan),
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

	require.NoError(t, listener.(*net.TCPListener).SetDeadline(time.Now().Add(time.Minute)))
	var lines []*stormLine
	for range stormProcesses {
		conn, err := listener.Accept()
		alive(err)
		defer conn.Close() //nolint:errcheck // the end of the test
		lines = append(lines, newStormLine(conn))
	}
	for round := range storm.Rounds + 1 {
		id := inbox.NewUUID()
		if round == storm.Rounds {
			id = "" // the end
		}
		for _, line := range lines {
			alive(line.Encode(id))
		}
		if id == "" {
			break
		}
		var ready bool
		for _, line := range lines {
			alive(line.Decode(&ready))
		}
	}
	for _, line := range lines {
		var report stormReport
		alive(line.Decode(&report))
		sum.add(report)
	}
	for _, child := range children {
		require.NoError(t, child.Wait(t.Context()))
	}
	return sum
}

// stormLine is a connection between a process of a storm and its parent.
type stormLine struct {
	*json.Encoder
	*json.Decoder
	conn net.Conn
}

func newStormLine(conn net.Conn) *stormLine {
	return &stormLine{json.NewEncoder(conn), json.NewDecoder(conn), conn}
}

// stormChild is one of the processes.
func (s *suite) stormChild(t *testing.T, this task) {
	var plan storm
	require.NoError(t, json.Unmarshal([]byte(this.Args["storm"]), &plan))
	number, err := strconv.Atoi(this.Args["number"])
	require.NoError(t, err)
	config := sqlinbox.Config{Isolation: plan.Level}
	r := s.rig(t, Options{Space: this.Space, PoolSize: stormPool, Config: config}, inbox.Config{})
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", this.Args["address"])
	require.NoError(t, err)
	defer conn.Close() //nolint:errcheck // the end of the process

	copies := stormCopies / stormProcesses
	if number < stormCopies%stormProcesses {
		copies++
	}
	p := &stormProcess{rig: r, counter: stormCounter(r.Env), shared: plan.Neighbours > 0}
	line := newStormLine(conn)
	for {
		var id string
		require.NoError(t, line.Decode(&id))
		if id == "" {
			break
		}
		p.round(id, copies, plan.Neighbours)
		require.NoError(t, line.Encode(true))
	}
	require.NoError(t, line.Encode(p.sum()))
}

// stormProcess delivers.
type stormProcess struct {
	*rig
	counter string
	shared  bool // handlers update the counter
	calls   atomic.Int64

	mu     sync.Mutex
	report stormReport
}

func (p *stormProcess) round(id string, copies, neighbours int) {
	var wg sync.WaitGroup
	start := make(chan struct{})
	deliver := func(id string) {
		wg.Go(func() {
			<-start
			p.deliver(id)
		})
	}
	for range copies {
		deliver(id)
	}
	for range neighbours {
		deliver(inbox.NewUUID())
	}
	close(start)
	wg.Wait()
}

// deliver delivers one copy until it is acked.
func (p *stormProcess) deliver(id string) {
	for acked := false; !acked; {
		err := p.handle(message.NewMessage(id, message.Payload("pay 10")), p.handler)
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

func (p *stormProcess) handler(msg *message.Message) ([]*message.Message, error) {
	ctx := msg.Context()
	if err := p.Write(ctx, msg.UUID); err != nil {
		return nil, err
	}
	if p.shared {
		// MariaDB notices only after a read that somebody has changed the row since.
		if err := p.Exec(ctx, "SELECT n FROM "+p.counter); err != nil {
			return nil, err
		}
		if err := p.Exec(ctx, "UPDATE "+p.counter+" SET n = n + 1"); err != nil {
			return nil, err
		}
	}
	if p.calls.Add(1)%stormFailures == 0 {
		return nil, errHandler
	}
	return nil, nil
}

func (p *stormProcess) sum() stormReport {
	r := p.report
	r.Processed = p.events.count(inbox.OutcomeProcessed)
	r.Duplicate = p.events.count(inbox.OutcomeDuplicate)
	r.ToldInFlight = p.events.count(inbox.OutcomeInFlight)
	r.ToldFailed = p.events.count(inbox.OutcomeFailed)
	for _, event := range p.events.all() {
		r.Told++
		r.TxRetries += event.TxRetries
	}
	return r
}
