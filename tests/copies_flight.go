package tests

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox"
)

// inHand is a delivery on a goroutine of its own.
type inHand struct {
	done chan struct{}
	err  error // to be read after done
}

// start passes a message through the middleware and does not wait for the end.
func (r *rig) start(msg *message.Message, handler message.HandlerFunc) *inHand {
	d := &inHand{done: make(chan struct{})}
	go func() {
		defer close(d.done)
		d.err = r.handle(msg, handler)
	}()
	return d
}

// end waits for the delivery and gives what the middleware returned.
func (d *inHand) end(t *testing.T) error {
	t.Helper()
	await(t, d.done, "the end of a delivery")
	return d.err
}

func (d *inHand) ended() bool {
	select {
	case <-d.done:
		return true
	default:
		return false
	}
}

// gate makes handlers stand still inside their transaction until it is opened, at the latest by the end of the test.
type gate struct {
	reached chan struct{}
	opened  chan struct{}
	open    func()
}

func newGate(t *testing.T) *gate {
	g := &gate{reached: make(chan struct{}, 100), opened: make(chan struct{})}
	g.open = sync.OnceFunc(func() { close(g.opened) })
	t.Cleanup(g.open)
	return g
}

// after stands still when the work is done; a message whose context ends meanwhile fails.
func (g *gate) after(work message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		produced, err := work(msg)
		if err != nil {
			return nil, err
		}
		g.reached <- struct{}{}
		select {
		case <-g.opened:
			return produced, msg.Context().Err()
		case <-msg.Context().Done():
			return nil, msg.Context().Err()
		}
	}
}

// wait waits until a handler stands at the gate.
func (g *gate) wait(t *testing.T) {
	t.Helper()
	await(t, g.reached, "a handler")
}

// beside is the rig's inbox in another process, as far as that matters: another store on another pool, whose copies meet
// those of the first in the database only. What its observer and logger are told is r's.
func (s *suite) beside(t *testing.T, r *rig, o Options, config inbox.Config) *rig {
	t.Helper()
	o.Space, o.Config = r.Space, r.Config
	other := &rig{Env: s.open(t, o), logs: r.logs}
	config.Consumer, config.Logger, config.Observer = onlyConsumer, r.logs, r.events.add
	var err error
	other.Inbox, err = inbox.New(other.Store, config)
	require.NoError(t, err)
	return other
}

func onlyConsumer(*message.Message) string { return consumer }

// inBothPlaces runs a case with the second copy in the process of the first, and in another one.
func (s *suite) inBothPlaces(t *testing.T, o Options, config inbox.Config, run func(t *testing.T, r, second *rig)) {
	t.Helper()
	t.Run("InThisProcess", func(t *testing.T) {
		r := s.rig(t, o, config)
		run(t, r, r)
	})
	t.Run("InAnotherProcess", func(t *testing.T) {
		r := s.rig(t, o, config)
		run(t, r, s.beside(t, r, o, config))
	})
}

// meet waits until the second copy has met the first, which is in its handler. In another process that shows: it took a
// connection for its claim and, where a claim never waits, gave it back. In this one it shows nowhere, but takes no
// time either. A copy that has ended needs no waiting for.
func (s *suite) meet(t *testing.T, r, second *rig, delivery *inHand) {
	t.Helper()
	if r == second {
		select {
		case <-delivery.done:
		case <-time.After(5 * time.Millisecond):
		}
		return
	}
	limit := time.Now().Add(patience)
	until := func(enough func() bool) {
		for !enough() && !delivery.ended() {
			require.True(t, time.Now().Before(limit), "the second copy never came")
			time.Sleep(50 * time.Microsecond)
		}
	}
	until(func() bool { return second.InUse() > 0 })
	if s.Server {
		until(func() bool { return second.InUse() == 0 })
	}
}

// processedOnce checks the end of every case in which a message came twice and was handled.
func (r *rig) processedOnce(t *testing.T) {
	t.Helper()
	require.Equal(t, 1, r.Count(t, "pay"))
	require.Equal(t, 1, r.Rows(t))
	require.Equal(t, 1, r.events.count(inbox.OutcomeProcessed))
	r.requireIdle(t)
}

func (s *suite) a4(t *testing.T) {
	s.inBothPlaces(t, Options{}, inbox.Config{}, func(t *testing.T, r, elsewhere *rig) {
		msg := newMessage("pay 10")
		stop := newGate(t)
		first := r.start(msg.Copy(), stop.after(r.writes("pay")))
		stop.wait(t)
		second := elsewhere.start(msg.Copy(), elsewhere.writes("pay"))
		s.meet(t, r, elsewhere, second)
		require.False(t, second.ended(), "the copy waits for the first one")
		stop.open()
		require.NoError(t, first.end(t))
		require.NoError(t, second.end(t))
		r.processedOnce(t)
		r.told(t, map[inbox.Outcome]int{inbox.OutcomeProcessed: 1, inbox.OutcomeDuplicate: 1})
	})
}

func (s *suite) a4TakesOver(t *testing.T) {
	s.inBothPlaces(t, Options{}, inbox.Config{}, func(t *testing.T, r, elsewhere *rig) {
		msg := newMessage("pay 10")
		stop := newGate(t)
		first := r.start(msg.Copy(), func(msg *message.Message) ([]*message.Message, error) {
			if _, err := stop.after(r.writes("pay"))(msg); err != nil {
				return nil, err
			}
			return nil, errHandler
		})
		stop.wait(t)
		second := elsewhere.start(msg.Copy(), elsewhere.writes("pay"))
		s.meet(t, r, elsewhere, second)
		stop.open()
		require.ErrorIs(t, first.end(t), errHandler)
		require.NoError(t, second.end(t))
		r.processedOnce(t)
		r.told(t, map[inbox.Outcome]int{inbox.OutcomeFailed: 1, inbox.OutcomeProcessed: 1})
	})
}

func (s *suite) a4FailFast(t *testing.T) {
	o := Options{Config: sqlinbox.Config{InFlightWait: -1}}
	s.inBothPlaces(t, o, inbox.Config{}, func(t *testing.T, r, elsewhere *rig) {
		msg := newMessage("pay 10")
		stop := newGate(t)
		first := r.start(msg.Copy(), stop.after(r.writes("pay")))
		stop.wait(t)

		err := elsewhere.start(msg.Copy(), elsewhere.writes("pay")).end(t)
		require.ErrorIs(t, err, inbox.ErrInFlight)
		require.True(t, inbox.IsTransient(err))
		require.False(t, inbox.IsPermanent(err))
		told := r.events.all()
		require.Len(t, told, 1)
		require.Equal(t, inbox.OutcomeInFlight, told[0].Outcome)
		require.Less(t, told[0].Duration, 3*time.Second, "at once; the default is 5 s")
		require.False(t, first.ended())

		stop.open()
		require.NoError(t, first.end(t))
		require.NoError(t, elsewhere.handle(msg.Copy(), elsewhere.writes("pay")), "its redelivery is a duplicate")
		r.processedOnce(t)
		r.told(t, map[inbox.Outcome]int{inbox.OutcomeInFlight: 1, inbox.OutcomeProcessed: 1, inbox.OutcomeDuplicate: 1})
	})
}

// a4Cold has another consumer's first message of all come while the handler of a message is at work.
func (s *suite) a4Cold(t *testing.T) {
	r := s.rig(t, Options{Config: sqlinbox.Config{InFlightWait: -1}}, inbox.Config{})
	msg := newMessage("pay 10")
	stop := newGate(t)
	first := r.start(msg.Copy(), stop.after(r.writes("pay")))
	stop.wait(t)
	_, err := r.As("mail")(r.writes("mail"))(msg.Copy())
	if s.Server {
		require.NoError(t, err)
	} else {
		require.ErrorIs(t, err, inbox.ErrInFlight, "the one writer is busy")
	}
	require.Less(t, r.events.all()[0].Duration, 3*time.Second, "at once")
	stop.open()
	require.NoError(t, first.end(t))
}

// a4Opens opens a store while the handler of another one is at work, longer than anybody wants to wait.
func (s *suite) a4Opens(t *testing.T) {
	r := s.rig(t, Options{}, inbox.Config{})
	stop := newGate(t)
	first := r.start(newMessage("pay 10"), stop.after(r.writes("pay")))
	stop.wait(t)
	began := time.Now()
	second, err := r.Open(context.Background(), r.Config)
	require.NoError(t, err)
	require.NotNil(t, second)
	require.Less(t, time.Since(began), 3*time.Second)
	stop.open()
	require.NoError(t, first.end(t))
	r.processedOnce(t)
}

func (s *suite) a4Bounded(t *testing.T) {
	const wait = 150 * time.Millisecond
	o := Options{Config: sqlinbox.Config{InFlightWait: wait}}
	s.inBothPlaces(t, o, inbox.Config{}, func(t *testing.T, r, elsewhere *rig) {
		msg := newMessage("pay 10")
		stop := newGate(t)
		first := r.start(msg.Copy(), stop.after(r.writes("pay")))
		stop.wait(t)
		require.ErrorIs(t, elsewhere.start(msg.Copy(), elsewhere.writes("pay")).end(t), inbox.ErrInFlight)
		told := r.events.all()
		require.Len(t, told, 1)
		require.GreaterOrEqual(t, told[0].Wait, wait*9/10)
		require.Less(t, told[0].Duration, 3*time.Second, "the default is 5 s")
		stop.open()
		require.NoError(t, first.end(t))
		r.processedOnce(t)
	})
}

func (s *suite) a4Context(t *testing.T) {
	o := Options{Config: sqlinbox.Config{InFlightWait: time.Hour}}
	s.inBothPlaces(t, o, inbox.Config{}, func(t *testing.T, r, elsewhere *rig) {
		msg := newMessage("pay 10")
		stop := newGate(t)
		first := r.start(msg.Copy(), stop.after(r.writes("pay")))
		stop.wait(t)

		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		waiting := msg.Copy()
		waiting.SetContext(ctx)
		second := elsewhere.start(waiting, elsewhere.writes("pay"))
		s.meet(t, r, elsewhere, second)
		cancel()
		err := second.end(t)
		require.ErrorIs(t, err, context.Canceled)
		require.True(t, inbox.IsTransient(err))

		stop.open()
		require.NoError(t, first.end(t))
		r.processedOnce(t)
	})
}

// a4Connections has copies wait in a process with one connection: it is for everybody else.
func (s *suite) a4Connections(t *testing.T) {
	o := Options{PoolSize: 1, Config: sqlinbox.Config{InFlightWait: time.Hour}}
	r := s.rig(t, o, inbox.Config{})
	elsewhere := s.beside(t, r, o, inbox.Config{})
	msg := newMessage("pay 10")
	stop := newGate(t)
	first := r.start(msg.Copy(), stop.after(r.writes("pay")))
	stop.wait(t)
	var copies []*inHand
	for range 8 {
		copies = append(copies, elsewhere.start(msg.Copy(), elsewhere.writes("pay")))
	}
	s.meet(t, r, elsewhere, copies[0])
	for n := range 20 {
		stranger := elsewhere.start(newMessage("other"), elsewhere.writes(fmt.Sprint("other ", n)))
		require.NoError(t, stranger.end(t), "a message that has nothing to do with the copies")
		require.Equal(t, 1, r.Count(t, fmt.Sprint("other ", n)))
	}
	for _, waiting := range copies {
		require.False(t, waiting.ended())
	}
	stop.open()
	require.NoError(t, first.end(t))
	for _, waiting := range copies {
		require.NoError(t, waiting.end(t))
	}
	require.Equal(t, 1, r.Count(t, "pay"))
	r.told(t, map[inbox.Outcome]int{inbox.OutcomeProcessed: 21, inbox.OutcomeDuplicate: 8})
}
