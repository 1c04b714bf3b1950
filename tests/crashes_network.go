package tests

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/inboxtest"
)

// networkFaults are the cases about the network between the program and its server.
func (s *suite) networkFaults() []testCase {
	return []testCase{
		{"B2_CommitReplyLost", s.b2(true, func(proxy *inboxtest.Proxy) { proxy.DropCommitReply(1) })},
		{"B2_CommitLost", s.b2(false, func(proxy *inboxtest.Proxy) { proxy.OnCommit(proxy.CutAll) })},
		{"B2_CommitReplyLostAndThePayloadSpoilt", s.b2Spoilt(func(msg *message.Message) { msg.Payload = message.Payload("spoilt") })},
		{"B2_CommitReplyLostAndTheIDSpoilt", s.b2Spoilt(func(msg *message.Message) { msg.Metadata.Set("event_id", "spoilt") })},
		{"B3_HandlerAndConnectionFail", s.b3(false)},
		{"B3_HandlerSeesItsConnectionFail", s.b3(true)},
		{"B3_IdleConnectionWasCut", s.b3Idle},
		{"B9_AckedAndTheCommitIsLost", s.b9CommitLost},
	}
}

// b2 loses a COMMIT or its reply, and delivers the message again.
func (s *suite) b2(committed bool, fault func(*inboxtest.Proxy)) func(*testing.T) {
	return func(t *testing.T) {
		env, proxy := s.behindProxy(t, Options{})
		r := newRig(t, env, inbox.Config{})
		msg := newMessage("pay 10")
		fault(proxy)
		err := r.handleWithin(t, msg.Copy(), r.writes("pay"))
		proxy.OnCommit(nil)

		s.requireCommitUnknown(t, r, err)
		for range 2 {
			require.NoError(t, r.handleWithin(t, msg.Copy(), r.writes("pay")))
		}
		if committed {
			require.Equal(t, 1, proxy.Counts().DroppedCommits)
			require.Equal(t, 2, r.events.count(inbox.OutcomeDuplicate), "the redelivery finds the row")
		} else {
			require.Equal(t, 1, r.events.count(inbox.OutcomeDuplicate))
			require.Equal(t, 1, r.events.count(inbox.OutcomeProcessed), "the redelivery does the work")
		}
		require.Equal(t, 0, r.events.count(inbox.OutcomeInFlight))
		r.requireOnce(t)
	}
}

// b2Spoilt loses the reply for a handler that changed its message: a Retry middleware comes back with the same one.
func (s *suite) b2Spoilt(spoil func(*message.Message)) func(*testing.T) {
	return func(t *testing.T) {
		env, proxy := s.behindProxy(t, Options{})
		r := newRig(t, env, inbox.Config{Identity: inbox.ByMetadata("event_id")})
		msg := newMessage("pay 10")
		msg.Metadata.Set("event_id", "42")
		proxy.DropCommitReply(1)
		err := r.handleWithin(t, msg, r.writesThen("pay", func(msg *message.Message) error {
			spoil(msg)
			return nil
		}))
		s.requireCommitUnknown(t, r, err)

		require.NoError(t, r.handleWithin(t, msg, r.writes("pay")), "not another message under a used id")
		require.Equal(t, 1, r.events.count(inbox.OutcomeDuplicate))
		r.requireOnce(t)
	}
}

func (s *suite) requireCommitUnknown(t *testing.T, r *rig, err error) {
	t.Helper()
	require.ErrorIs(t, err, inbox.ErrCommitUnknown, "never tried again inside: the redelivery decides")
	require.NotErrorIs(t, err, inbox.ErrInFlight)
	require.True(t, inbox.IsTransient(err))
	require.Equal(t, 1, r.events.count(inbox.OutcomeFailed))
}

// b3 cuts the connection under a handler that fails: unseen, or seen by a statement whose error the handler hides.
func (s *suite) b3(seen bool) func(*testing.T) {
	return func(t *testing.T) {
		env, proxy := s.behindProxy(t, Options{})
		r := newRig(t, env, inbox.Config{})
		msg := newMessage("pay 10")
		err := r.handleWithin(t, msg.Copy(), r.writesThen("pay", func(msg *message.Message) error {
			proxy.CutAll()
			if seen && r.Write(msg.Context(), "pay") == nil {
				return nil
			}
			return errHandler
		}))
		require.ErrorIs(t, err, errHandler)
		require.ErrorIs(t, err, inbox.ErrUnavailable, "the dead connection is told too")
		require.True(t, inbox.IsTransient(err), "the message stays in the broker")
		r.requireNothing(t)

		require.NoError(t, r.handleWithin(t, msg.Copy(), r.writes("pay")))
		r.requireOnce(t)
	}
}

// b3Idle cuts a connection that waits in the pool, as a restarted server or a firewall does: the next message does not
// have to pay for it.
func (s *suite) b3Idle(t *testing.T) {
	env, proxy := s.behindProxy(t, Options{PoolSize: 1})
	r := newRig(t, env, inbox.Config{})
	for range 3 {
		require.NoError(t, r.handle(newMessage("warm-up"), r.writes("warm-up")))
		proxy.CutAll()
		require.NoError(t, r.handleWithin(t, newMessage("pay 10"), r.writes("pay")))
	}
	require.Equal(t, 3, r.Count(t, "pay"))
	r.requireIdle(t)
}

// b9CommitLost loses the COMMIT of a message that is acked already.
func (s *suite) b9CommitLost(t *testing.T) {
	env, proxy := s.behindProxy(t, Options{})
	r := newRig(t, env, inbox.Config{})
	proxy.OnCommit(proxy.CutAll)
	defer proxy.OnCommit(nil)
	err := r.handleWithin(t, newMessage("pay 10"), r.writesThen("pay", func(msg *message.Message) error {
		msg.Ack()
		return nil
	}))
	require.ErrorIs(t, err, inbox.ErrCommitUnknown)
	require.Equal(t, 1, r.events.count(inbox.OutcomeLost))
	require.Len(t, r.logs.at("ERROR"), 1)
	require.ErrorIs(t, r.logs.at("ERROR")[0].err, inbox.ErrCommitUnknown)
	r.requireNothing(t)
}
