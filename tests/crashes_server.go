package tests

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	inbox "github.com/watermill-contrib/watermill-inbox"
)

// outages are the cases about a server that goes away and comes back.
func (s *suite) outages() []testCase {
	return []testCase{{"B4_ServerAwayUnderLoad", s.b4}}
}

// b4 stops the server while a router works, with handlers in their transactions, and starts it again. A third of the
// messages arrives before the outage, a third in it, a third behind it.
func (s *suite) b4(t *testing.T) {
	away := time.Duration(Scale(5000, 2000)) * time.Millisecond
	const third, held = 60, 8
	server := s.StartServer(t)
	r := s.rig(t, Options{DSN: server.DSN()}, inbox.Config{})

	h := &host{}
	var acked, inside atomic.Int64
	stopped := make(chan struct{})
	count := func(next message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			produced, err := next(msg)
			if err == nil {
				acked.Add(1)
			}
			return produced, err
		}
	}
	startHost(t, r, h, func(msg *message.Message) ([]*message.Message, error) {
		name := string(msg.Payload)
		if err := r.Write(msg.Context(), name); err != nil {
			return nil, err
		}
		if msg.Metadata.Get("held") != "" { // it meets the outage in its transaction
			inside.Add(1)
			<-stopped
		}
		return nil, r.Write(msg.Context(), name+" receipt")
	}, append([]message.HandlerMiddleware{count}, h.documentedOrder(t)...)...)

	n := 0
	publish := func() {
		for i := range third {
			msg := newMessage(fmt.Sprint("pay ", n))
			if n < third && i < held {
				msg.Metadata.Set("held", "yes")
			}
			h.publish(t, msg)
			n++
		}
	}
	publish()
	require.Eventually(t, func() bool { return inside.Load() == held && acked.Load() >= third/2 }, 3*patience, time.Millisecond,
		"the load before the outage")
	server.Stop()
	close(stopped)
	publish()
	time.Sleep(away) // the outage itself
	require.Less(t, int(acked.Load()), 2*third, "there is a lag")
	server.Start()
	publish()
	require.Eventually(t, func() bool { return acked.Load() == 3*third }, 3*patience, 10*time.Millisecond, "the lag returns to 0")

	for i := range n {
		require.Equal(t, 1, r.Count(t, fmt.Sprint("pay ", i)))
		require.Equal(t, 1, r.Count(t, fmt.Sprint("pay ", i, " receipt")))
	}
	require.Equal(t, 2*n, r.Total(t))
	require.Equal(t, n, r.Rows(t))
	r.requireIdle(t)
	require.Empty(t, h.poison.all(), "no message is blamed for the outage")
	require.Positive(t, r.events.count(inbox.OutcomeFailed))
	require.Positive(t, r.events.count(inbox.OutcomeProcessed))
}
