package tests

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	inbox "github.com/watermill-contrib/watermill-inbox"
)

// copies are the cases about copies of one message (A).
func (s *suite) copies() []testCase {
	return []testCase{
		{"A1_FailsFirstThenHandled", s.a1},
		{"A5_DuplicateLeavesTheConnectionUsable", s.a5},
	}
}

func (s *suite) a1(t *testing.T) {
	r := s.rig(t, Options{}, inbox.Config{})
	msg := newMessage("pay 10")
	attempts := 0
	handler := func(msg *message.Message) ([]*message.Message, error) {
		attempts++
		require.NoError(t, r.Write(msg.Context(), "pay"))
		if attempts == 1 {
			return nil, errHandler
		}
		return nil, nil
	}
	require.ErrorIs(t, r.handle(msg.Copy(), handler), errHandler)
	require.Equal(t, 0, r.Rows(t), "a failed handler leaves no memory row")
	require.NoError(t, r.handle(msg.Copy(), handler))
	require.NoError(t, r.handle(msg.Copy(), handler))

	require.Equal(t, 2, attempts)
	require.Equal(t, 1, r.Count(t, "pay"))
	require.Equal(t, 1, r.Rows(t))
	require.Equal(t, 1, r.events.count(inbox.OutcomeFailed))
	require.Equal(t, 1, r.events.count(inbox.OutcomeProcessed))
	require.Equal(t, 1, r.events.count(inbox.OutcomeDuplicate))
}

func (s *suite) a5(t *testing.T) {
	r := s.rig(t, Options{PoolSize: 1}, inbox.Config{})
	msg := newMessage("pay 10")
	require.NoError(t, r.handle(msg.Copy(), r.writes("pay")))
	for range 3 {
		require.NoError(t, r.handle(msg.Copy(), r.writes("pay")), "no unique violation surfaces")
		require.NoError(t, r.handle(newMessage("other"), func(msg *message.Message) ([]*message.Message, error) {
			return nil, r.Exec(msg.Context(), "SELECT 1")
		}), "the only connection is usable after a duplicate")
	}
	require.Equal(t, 1, r.Count(t, "pay"))
	require.Equal(t, 0, r.InUse())
}

// copyTasks are what the children of these cases do.
func (s *suite) copyTasks() map[string]taskFunc {
	return map[string]taskFunc{}
}
