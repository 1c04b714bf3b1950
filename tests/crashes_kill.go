package tests

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/inboxtest"
)

const killTask = "handle and die"

// kills are the cases in which a process is killed with SIGKILL on its way from the claim to the ack.
func (s *suite) kills() []testCase {
	cases := []testCase{
		{"B1_KilledAfterTheClaim", s.killedAt("claimed", false)},
		{"B1_KilledAfterTheWrite", s.killedAt("written", false)},
		{"B1_KilledAtTheEndOfTheHandler", s.killedAt("returning", false)},
		{"B1_KilledBeforeTheCommit", s.killedAt("committing", false)},
		{"B1_KilledBeforeTheAck", s.killedAt("unacked", true)},
		{"B1_KilledAtAnyMoment", s.killedAtAnyMoment},
	}
	if s.Server {
		cases = append(
			cases,
			testCase{"B1_KilledWhileCommitIsOnItsWay", s.killedAtCommit(true)},
			testCase{"B1_KilledWithItsCommit", s.killedAtCommit(false)},
		)
	}
	return cases
}

// handleAndDie is the child: it handles one message and passes the points at which it may be killed.
func (s *suite) handleAndDie(t *testing.T, this task) {
	var handled atomic.Bool // the COMMITs before are of no interest
	o := Options{Space: this.Space, DSN: this.DSN, BeforeCommit: func() {
		if handled.Load() {
			inboxtest.Point("committing")
		}
	}}
	if via := this.Args["via"]; via != "" {
		o.Via = func(string) string { return via }
	}
	r := s.rig(t, o, inbox.Config{})
	msg := message.NewMessage(this.Args["id"], message.Payload(payloadOfKilled))
	require.NoError(t, r.handle(msg, func(msg *message.Message) ([]*message.Message, error) {
		inboxtest.Point("claimed")
		if err := r.Write(msg.Context(), "pay"); err != nil {
			return nil, err
		}
		inboxtest.Point("written")
		if err := r.Write(msg.Context(), "receipt"); err != nil {
			return nil, err
		}
		inboxtest.Point("returning")
		handled.Store(true)
		return nil, nil
	}))
	inboxtest.Point("unacked")
}

const payloadOfKilled = "pay 10"

// killedAt kills the child at a point and delivers the message again.
func (s *suite) killedAt(point string, committed bool) func(*testing.T) {
	return func(t *testing.T) {
		r := s.rig(t, Options{}, inbox.Config{})
		msg := newMessage(payloadOfKilled)
		child := s.startChild(t, r.Env, task{Name: killTask, Args: map[string]string{"id": msg.UUID}}, point)
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		require.NoError(t, child.WaitPoint(ctx))
		require.NoError(t, child.Kill())
		s.requireOnceAfterRedelivery(t, r, msg, committed)
	}
}

// killedAtCommit kills the child at the moment when its COMMIT is on the wire, and then loses the COMMIT with the
// connection or lets it reach the server.
func (s *suite) killedAtCommit(arrives bool) func(*testing.T) {
	return func(t *testing.T) {
		behind, proxy := s.behindProxy(t, Options{})
		r := s.rig(t, Options{Space: behind.Space}, inbox.Config{})
		onItsWay, killed := make(chan struct{}), make(chan struct{})
		proxy.OnCommit(func() {
			close(onItsWay)
			<-killed
			if !arrives {
				proxy.CutAll()
			}
		})
		defer proxy.OnCommit(nil)

		msg := newMessage(payloadOfKilled)
		child := s.startChild(t, r.Env, task{Name: killTask, Args: map[string]string{"id": msg.UUID, "via": proxy.Addr()}}, "unacked")
		within(t, patience, "waiting for the child's COMMIT", func() { <-onItsWay })
		require.Equal(t, 0, r.Total(t), "nothing is committed before the COMMIT")
		require.NoError(t, child.Kill())
		close(killed)
		s.requireOnceAfterRedelivery(t, r, msg, arrives)
	}
}

// A process that is killed at any moment handles so many messages, in so many goroutines.
const (
	anyMomentTask     = "handle many"
	anyMomentMessages = 40
	anyMomentWorkers  = 4
)

// handleMany is the child: it handles its messages in several goroutines and comes to its end, or not.
func (s *suite) handleMany(t *testing.T, this task) {
	r := s.rig(t, Options{Space: this.Space, DSN: this.DSN}, inbox.Config{})
	require.NoError(t, r.handleMany(context.Background(), this.Args["round"]))
}

// handleMany handles the messages of a round.
func (r *rig) handleMany(ctx context.Context, round string) error {
	var wg sync.WaitGroup
	errs := make([]error, anyMomentWorkers)
	for worker := range anyMomentWorkers {
		wg.Go(func() {
			for i := worker; i < anyMomentMessages; i += anyMomentWorkers {
				id := fmt.Sprintf("%s/%d", round, i)
				err := r.redeliver(ctx, message.NewMessage(id, message.Payload(id)), r.writes(id))
				errs[worker] = errors.Join(errs[worker], err)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// killedAtAnyMoment kills a busy process in each round, wherever it happens to be, and delivers its messages again.
func (s *suite) killedAtAnyMoment(t *testing.T) {
	r := s.rig(t, Options{}, inbox.Config{})
	ctx, cancel := context.WithTimeout(context.Background(), 10*patience)
	defer cancel()
	rounds := Scale(200, 20)
	for n := range rounds {
		round := fmt.Sprint("round ", n)
		child := s.startChild(t, r.Env, task{Name: anyMomentTask, Args: map[string]string{"round": round}}, "")
		reached := n*anyMomentMessages + rand.IntN(anyMomentMessages)
		require.Eventually(t, func() bool { return r.Total(t) >= reached }, patience, time.Millisecond, "effects of the child")
		require.NoError(t, child.Kill())
		require.NoError(t, r.handleMany(ctx, round))
	}
	require.Equal(t, rounds*anyMomentMessages, r.Total(t), "effects")
	require.Equal(t, rounds*anyMomentMessages, r.scalar(t, "SELECT count(DISTINCT name) FROM "+r.Effects), "effects of different messages")
	require.Equal(t, rounds*anyMomentMessages, r.Rows(t), "memory rows")
	r.requireIdle(t)
}

// requireOnceAfterRedelivery delivers the message of a killed process again, twice.
func (s *suite) requireOnceAfterRedelivery(t *testing.T, r *rig, msg *message.Message, committed bool) {
	t.Helper()
	handled := 0
	handler := func(msg *message.Message) ([]*message.Message, error) {
		handled++
		for _, effect := range []string{"pay", "receipt"} {
			if err := r.Write(msg.Context(), effect); err != nil {
				return nil, err
			}
		}
		return nil, nil
	}
	for range 2 {
		// The server may need a moment to see that the child is gone; InFlightWait covers it.
		require.NoError(t, r.handleWithin(t, msg.Copy(), handler))
	}
	if committed {
		require.Equal(t, 0, handled, "the work of the killed process is committed")
	} else {
		require.Equal(t, 1, handled, "the work of the killed process is gone with it")
	}
	require.Equal(t, 1, r.Count(t, "receipt"))
	r.requireOnce(t)
}
