package tests

import (
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	inbox "github.com/watermill-contrib/watermill-inbox"
)

// txEnds are the cases about handlers that end the transaction, which belongs to the inbox.
func (s *suite) txEnds() []testCase {
	ignored := func(error) error { return nil }
	end := func(name string, f func(r *rig, msg *message.Message) error) testCase {
		return testCase{"B10_" + name, s.b10(f)}
	}
	cases := []testCase{
		end("Commit", func(r *rig, msg *message.Message) error { return r.CommitTx(msg.Context()) }),
		end("CommitErrorIgnored", func(r *rig, msg *message.Message) error { return ignored(r.CommitTx(msg.Context())) }),
		end("Rollback", func(r *rig, msg *message.Message) error { return r.RollbackTx(msg.Context()) }),
		end("DeferredRollback", func(r *rig, msg *message.Message) error {
			defer func() { _ = r.RollbackTx(msg.Context()) }()
			return nil
		}),
		end("WriteAfterRollback", func(r *rig, msg *message.Message) error {
			_ = r.RollbackTx(msg.Context())
			return r.Write(msg.Context(), "pay")
		}),
		{"B10_DeferredRollbackBehindAnError", s.b10OwnError(func(r *rig, msg *message.Message) error {
			defer func() { _ = r.RollbackTx(msg.Context()) }()
			return errHandler
		})},
	}
	cases = append(cases, testCase{"B10_SavepointsAreTheHandlersOwn", s.b10Savepoint})
	cases = append(cases,
		end("CommitAsSQL", func(r *rig, msg *message.Message) error { return r.Exec(msg.Context(), "COMMIT") }),
		end("RollbackAsSQL", func(r *rig, msg *message.Message) error { return r.Exec(msg.Context(), "ROLLBACK") }),
	)
	if s.SeesTxEndSQL {
		cases = append(cases, testCase{"B10_RollbackAsSQLBehindAnError", s.b10OwnError(func(r *rig, msg *message.Message) error {
			_ = r.Exec(msg.Context(), "ROLLBACK")
			return errHandler
		})})
	}
	if s.RefusesTxEnd {
		cases = append(cases, testCase{"B10_RefusedAtOnce", s.b10Refused})
	}
	return cases
}

// b10 ends the transaction in the handler, on the first message of a consumer, the only connection of the pool.
func (s *suite) b10(end func(*rig, *message.Message) error) func(*testing.T) {
	return func(t *testing.T) {
		r := s.rig(t, Options{PoolSize: 1}, inbox.Config{})
		msg := newMessage("pay 10")
		err := r.handleWithin(t, msg.Copy(), r.writesThen("pay", func(msg *message.Message) error {
			return end(r, msg)
		}))
		s.requireTxManaged(t, r, msg, err)

		// What the handler returns is recorded before the COMMIT: by then the transaction is gone, too.
		r = s.rig(t, Options{PoolSize: 1}, inbox.Config{})
		err = r.handleWithin(t, msg.Copy(), producing(r.writesThen("pay", func(msg *message.Message) error {
			return end(r, msg)
		})))
		requireTold(t, r, err)
	}
}

// producing is the handler, which also returns a message to publish.
func producing(handler message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		_, err := handler(msg)
		return []*message.Message{newMessage("receipt")}, err
	}
}

// b10OwnError is the same for a handler that returns an error of its own as well.
func (s *suite) b10OwnError(end func(*rig, *message.Message) error) func(*testing.T) {
	return func(t *testing.T) {
		r := s.rig(t, Options{PoolSize: 1}, inbox.Config{})
		msg := newMessage("pay 10")
		err := r.handleWithin(t, msg.Copy(), r.writesThen("pay", func(msg *message.Message) error {
			return end(r, msg)
		}))
		require.ErrorIs(t, err, errHandler)
		s.requireTxManaged(t, r, msg, err)
		require.Less(t, strings.Index(err.Error(), errHandler.Error()), strings.Index(err.Error(), inbox.ErrTxManaged.Error()),
			"the handler's own error comes first")
	}
}

// requireTxManaged asserts that a handler which ended the transaction was told so instead of an ack, and that the
// message is handled once by the mended handler.
func (s *suite) requireTxManaged(t *testing.T, r *rig, msg *message.Message, err error) {
	t.Helper()
	requireTold(t, r, err)

	require.NoError(t, r.handleWithin(t, newMessage("other"), r.writes("other")), "the only connection is usable")
	require.NoError(t, r.handleWithin(t, msg.Copy(), r.writes("pay")))
	require.Equal(t, 1, r.Count(t, "pay"))
	require.Equal(t, 2, r.Rows(t))
	require.Equal(t, 0, r.InUse())
}

// requireTold asserts that the first message of such a handler gave the typed error.
func requireTold(t *testing.T, r *rig, err error) {
	t.Helper()
	require.ErrorIs(t, err, inbox.ErrTxManaged)
	require.ErrorContains(t, err, "remove the handler's Commit", "the cure is named")
	require.True(t, inbox.IsTransient(err), "the message is not at fault")
	require.NotErrorIs(t, err, inbox.ErrCommitUnknown)
	require.Equal(t, 1, r.events.count(inbox.OutcomeFailed))
	require.Equal(t, 0, r.InUse())
	// Where the driver lets a handler commit, claim and effect are committed together.
	require.Equal(t, r.Rows(t), r.Count(t, "pay"))
}

// b10Savepoint is about what a handler may do: the inbox does not take it for the end of the transaction.
func (s *suite) b10Savepoint(t *testing.T) {
	r := s.rig(t, Options{PoolSize: 1}, inbox.Config{})
	require.NoError(t, r.handle(newMessage("pay 10"), r.writesThen("pay", func(msg *message.Message) error {
		require.NoError(t, r.Exec(msg.Context(), "SAVEPOINT attempt"))
		require.NoError(t, r.Write(msg.Context(), "undone"))
		require.NoError(t, r.Exec(msg.Context(), "ROLLBACK TO SAVEPOINT attempt"))
		return r.Exec(msg.Context(), "RELEASE SAVEPOINT attempt")
	})))
	require.Equal(t, 0, r.Count(t, "undone"))
	r.requireOnce(t)
}

// b10Refused is about a transaction that refuses its end itself: nothing reaches the server.
func (s *suite) b10Refused(t *testing.T) {
	r := s.rig(t, Options{PoolSize: 1}, inbox.Config{})
	err := r.handle(newMessage("pay 10"), r.writesThen("pay", func(msg *message.Message) error {
		require.ErrorIs(t, r.CommitTx(msg.Context()), inbox.ErrTxManaged)
		require.Equal(t, 0, r.Count(t, "pay"), "not committed")
		require.ErrorIs(t, r.RollbackTx(msg.Context()), inbox.ErrTxManaged)
		require.NoError(t, r.Write(msg.Context(), "pay"), "the transaction lives on")
		return nil
	}))
	require.ErrorIs(t, err, inbox.ErrTxManaged, "an error that the handler swallowed dooms the transaction")
	r.requireNothing(t)
}
