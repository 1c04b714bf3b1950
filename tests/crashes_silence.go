package tests

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox"
)

// silences are the cases about a network that stops without a word: no connection ends, no answer comes.
func (s *suite) silences() []testCase {
	return []testCase{
		{"B2_CommitReplyNeverComes", s.b2Silence},
		{"B3_HandlerFailsAndItsServerIsSilent", s.b3Silence},
		{"B11_NetworkGoneInMidHandler", s.b11},
		{"B11_NetworkGoneInADuplicate", s.b11Duplicate},
	}
}

// b2Silence stops the network at the COMMIT: the wait for the reply is bounded.
func (s *suite) b2Silence(t *testing.T) {
	const commitTimeout = 500 * time.Millisecond
	env, proxy := s.behindProxy(t, Options{Config: sqlinbox.Config{CommitTimeout: commitTimeout}})
	r := newRig(t, env, inbox.Config{})
	msg := newMessage("pay 10")
	proxy.OnCommit(proxy.StopForwarding)
	began := time.Now()
	err := r.handleWithin(t, msg.Copy(), r.writes("pay"))
	require.GreaterOrEqual(t, time.Since(began), commitTimeout)
	proxy.OnCommit(nil)
	s.requireCommitUnknown(t, r, err)

	proxy.Resume() // what was held back arrives, the COMMIT too
	require.NoError(t, r.handleWithin(t, msg.Copy(), r.writes("pay")))
	r.requireOnce(t)
}

// b3Silence stops the network under a handler that fails: the rollback is bounded.
func (s *suite) b3Silence(t *testing.T) {
	env, proxy := s.behindProxy(t, Options{Config: sqlinbox.Config{CommitTimeout: 500 * time.Millisecond}})
	r := newRig(t, env, inbox.Config{})
	msg := newMessage("pay 10")
	err := r.handleWithin(t, msg.Copy(), r.writesThen("pay", func(*message.Message) error {
		proxy.StopForwarding()
		return errHandler
	}))
	require.ErrorIs(t, err, errHandler)
	require.ErrorIs(t, err, inbox.ErrUnavailable)
	require.True(t, inbox.IsTransient(err))

	proxy.Resume()
	require.NoError(t, r.handleWithin(t, msg.Copy(), r.writes("pay")))
	r.requireOnce(t)
}

// b11 stops the network without a word while a handler runs, and delivers the message to another process.
func (s *suite) b11(t *testing.T) {
	const (
		idleTimeout   = time.Second
		inFlightWait  = 4 * time.Second
		commitTimeout = 500 * time.Millisecond
	)
	config := sqlinbox.Config{IdleTimeout: idleTimeout, InFlightWait: inFlightWait, CommitTimeout: commitTimeout}
	env, proxy := s.behindProxy(t, Options{Config: config})
	gone := newRig(t, env, inbox.Config{})
	r := s.rig(t, Options{Space: env.Space, Config: config}, inbox.Config{})
	msg := newMessage("pay 10")

	silent, goOn := make(chan struct{}), make(chan struct{})
	result := make(chan error, 1)
	go func() {
		result <- gone.handle(msg.Copy(), gone.writesThen("pay", func(*message.Message) error {
			proxy.StopForwarding()
			close(silent)
			<-goOn
			return nil
		}))
	}()
	within(t, patience, "the first handler", func() { <-silent })

	began := time.Now()
	require.NoError(t, r.handleWithin(t, msg.Copy(), r.writes("pay")))
	require.Less(t, time.Since(began), idleTimeout+inFlightWait)
	require.Equal(t, 1, r.events.count(inbox.OutcomeProcessed))

	// The first one comes to its end without an answer from its server, and is not acked.
	close(goOn)
	within(t, patience, "the end of the first delivery", func() {
		err := <-result
		result <- err
	})
	err := <-result
	require.ErrorIs(t, err, inbox.ErrCommitUnknown)
	require.True(t, inbox.IsTransient(err))

	proxy.Resume()
	require.NoError(t, gone.handleWithin(t, msg.Copy(), gone.writes("pay")))
	require.Equal(t, 1, gone.events.count(inbox.OutcomeDuplicate))
	gone.requireIdle(t)
	r.requireOnce(t)
}

// b11Duplicate stops the network when the server has answered the claim of a duplicate: the delivery ends with its
// context, it does not wait for ever to hear that its transaction is rolled back.
func (s *suite) b11Duplicate(t *testing.T) {
	env, proxy := s.behindProxy(t, Options{PoolSize: 1, Config: sqlinbox.Config{DoneTTL: -1}})
	r := newRig(t, env, inbox.Config{})
	msg := newMessage("pay 10")
	for range 2 { // warm: every statement is prepared
		require.NoError(t, r.handle(msg.Copy(), r.writes("pay")))
	}

	// The replies are late, so that there is time to stop the network between two of them.
	proxy.SetLatency(200 * time.Millisecond)
	proxy.ResetCounts()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	again := msg.Copy()
	again.SetContext(ctx)
	result := make(chan error, 1)
	go func() { result <- r.handle(again, r.writes("pay")) }()
	require.Eventually(t, func() bool {
		return slices.ContainsFunc(proxy.Log(), func(sql string) bool { return strings.HasPrefix(strings.ToLower(sql), "rollback") })
	}, patience, time.Millisecond, "the rollback of the claim")
	proxy.StopForwarding()
	cancel()
	var err error
	within(t, 20*time.Second, "a duplicate whose context is cancelled", func() { err = <-result })
	require.ErrorIs(t, err, context.Canceled)

	proxy.Resume()
	proxy.SetLatency(0)
	require.NoError(t, r.handleWithin(t, msg.Copy(), r.writes("pay")))
	r.requireOnce(t)
}
