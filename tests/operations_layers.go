package tests

import (
	"context"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/businesskey"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox"
)

// operationLayers are the cases about the two layers and what is between them.
func (s *suite) operationLayers() []testCase {
	cases := []testCase{
		{"A12_OperationOutsideTheInbox", s.operationOutside},
		{"A12_OperationOfAnotherStore", s.operationOfAnotherStore},
		{"A12_OperationInsideItself", s.operationInsideItself},
		{"F1_ProposalNotTakenUp", s.proposalUnused},
		{"F1_DuplicateWithAProposal", s.proposalOfDuplicate},
		{"F1_UndoneBySavepoint", s.operationSavepoint},
		{"C1_OperationRepeatedWithoutAPublishTopic", s.operationNoTopic},
		{"I3_MissingOperationsTable", s.operationsTableMissing},
		{"F1_SavepointLetsAnotherIn", s.operationSavepointRace},
	}
	if s.AbortsOnError {
		cases = append(cases, testCase{"B12_SwallowedErrorBesideAProposal", s.proposalAborted})
	}
	if !s.NoOutbox {
		cases = append(cases, testCase{"C3_OperationWithAnOutbox", s.operationOutbox})
	}
	return cases
}

// operationOutside puts the layers in the wrong order.
func (s *suite) operationOutside(t *testing.T) {
	bothWays(t, func(t *testing.T, claims bool) {
		r := s.opRig(t, Options{}, businesskey.Config{Scope: onlyConsumer}, claims)
		_, err := r.keys.Middleware(r.Middleware(r.writes("pay")))(command("pay-1", "pay 10"))
		require.ErrorIs(t, err, inbox.ErrNested)
		require.ErrorContains(t, err, "businesskey inside", "the cure is named")
		require.True(t, inbox.IsTransient(err))
		require.Equal(t, 0, r.operationsKept(t))
		r.requireNothing(t)
	})
}

// operationOfAnotherStore has keys on a second store, of another schema or of the same one.
func (s *suite) operationOfAnotherStore(t *testing.T) {
	bothWays(t, func(t *testing.T, claims bool) {
		r := s.opRig(t, Options{}, businesskey.Config{}, claims)
		same, err := r.Open(t.Context(), sqlinbox.Config{})
		require.NoError(t, err)
		for _, store := range []inbox.Store{s.open(t, Options{}).Store, same} {
			keys, err := businesskey.New(store.(inbox.OperationStore), businesskey.Config{})
			require.NoError(t, err)
			for name, handler := range map[string]message.HandlerFunc{
				"middleware": keys.Middleware(r.writes("pay")),
				"call": func(msg *message.Message) ([]*message.Message, error) {
					_, err := keys.Do(msg.Context(), businesskey.Operation{ID: "pay-1"}, r.pay("pay", ""))
					return nil, err
				},
			} {
				err := r.handleWithin(t, command("pay-1", "pay 10"), handler)
				require.ErrorIs(t, err, inbox.ErrNested, name)
				require.True(t, inbox.IsTransient(err))
				require.Equal(t, 0, r.operationsKept(t))
				r.requireNothing(t)
			}
		}
	})
}

func (s *suite) operationInsideItself(t *testing.T) {
	bothWays(t, func(t *testing.T, claims bool) {
		r := s.opRig(t, Options{PoolSize: 1}, businesskey.Config{}, claims)
		inside := func(msg *message.Message) ([]*message.Message, error) {
			_, _ = r.keys.Do(msg.Context(), businesskey.Operation{ID: "pay-1", Content: []byte("pay 10")}, r.pay("pay", ""))
			return nil, nil // it does not help to hide it
		}
		for name, handler := range map[string]message.HandlerFunc{"call": inside, "middleware": r.keys.Middleware(r.writes("pay"))} {
			err := r.handleWithin(t, command("pay-1", "pay 10"), r.keys.Middleware(handler))
			require.ErrorIs(t, err, inbox.ErrNested, name)
			require.True(t, inbox.IsTransient(err))
			require.Equal(t, 0, r.operationsKept(t))
			r.requireNothing(t)
		}
		var err error
		within(t, patience, "a call inside itself", func() {
			_, err = r.keys.Do(context.Background(), businesskey.Operation{Scope: "http", ID: "1"}, func(ctx context.Context) ([]byte, error) {
				return r.keys.Do(ctx, businesskey.Operation{Scope: "http", ID: "1"}, r.pay("pay", ""))
			})
		})
		require.ErrorIs(t, err, inbox.ErrNested)
		require.Equal(t, 0, r.operationsKept(t))
		r.requireNothing(t)
	})
}

// proposalUnused has handlers without the middleware behind an inbox with Claims.
func (s *suite) proposalUnused(t *testing.T) {
	r := s.opRig(t, Options{}, businesskey.Config{}, true)
	warnings := func() (n int) {
		for _, line := range r.logs.at("INFO") {
			if strings.Contains(line.text, "does not take up") {
				n++
			}
		}
		return n
	}
	native := s.Name == "pgx" || s.Name == "pgx-opendb" // there the claims travel together
	for range 3 {
		require.NoError(t, r.handle(command("pay-1", "pay 10"), r.writes("plain")))
		require.Equal(t, 0, r.operationsKept(t), "nothing is remembered of an operation that was not asked for")
	}
	if native {
		require.Equal(t, 1, warnings(), "said once for the handler")
	} else {
		require.Equal(t, 0, warnings())
	}
	require.NoError(t, r.handle(command("pay-1", "pay 10"), func(msg *message.Message) ([]*message.Message, error) {
		_, err := r.keys.Do(msg.Context(), businesskey.Operation{ID: "another"}, r.pay("another", ""))
		return []*message.Message{newMessage("produced")}, err
	}))
	require.Equal(t, 1, r.operationsKept(t), "the one that was asked for")
	require.Equal(t, 3, r.Count(t, "plain"))
	_, err := r.operate(command("pay-1", "pay 10"), r.writes("pay"))
	require.NoError(t, err)
	require.Equal(t, 1, r.Count(t, "pay"))
	require.Equal(t, 2, r.operationsKept(t))
	r.requireIdle(t)
}

// proposalOfDuplicate has a message that was handled without its operation: its copies conclude nothing.
func (s *suite) proposalOfDuplicate(t *testing.T) {
	r := s.opRig(t, Options{Config: sqlinbox.Config{DoneTTL: -1}}, businesskey.Config{}, true)
	plain := newRig(t, r.Env, inbox.Config{})
	msg := command("pay-1", "pay 10")
	require.NoError(t, plain.handle(msg.Copy(), plain.writes("plain")))
	for range 2 {
		_, err := r.operate(msg.Copy(), r.writes("pay"))
		require.NoError(t, err)
		require.Equal(t, inbox.OutcomeDuplicate, r.events.last(t).Outcome)
		require.Equal(t, inbox.LayerMessage, r.events.last(t).Layer)
		require.Equal(t, 0, r.operationsKept(t))
	}
	_, err := r.operate(command("pay-1", "pay 10"), r.writes("pay"))
	require.NoError(t, err)
	require.Equal(t, inbox.OutcomeProcessed, r.events.last(t).Outcome)

	// The other way round: a copy in flight holds its message, and the copy that waits proposes another operation.
	stop := newGate(t)
	copied := command("pay-2", "pay 10")
	first := r.startOperation(copied.Copy(), stop.after(r.writes("pay 2")))
	stop.wait(t)
	other := s.opBeside(t, r, Options{})
	proposes := copied.Copy()
	proposes.Metadata.Set(businesskey.OperationIDMetadataKey, "pay-3")
	second := other.startOperation(proposes, other.writes("pay 3"))
	s.meet(t, r.rig, other.rig, second)
	stop.open()
	require.NoError(t, first.end(t))
	require.NoError(t, second.end(t), "metadata is not content")
	require.Equal(t, 0, r.Count(t, "pay 3"))
	require.Equal(t, 2, r.operationsKept(t))
}

// operationSavepoint undoes an operation and does it again.
func (s *suite) operationSavepoint(t *testing.T) {
	r := s.opRig(t, Options{}, businesskey.Config{}, false)
	var got []byte
	operation := businesskey.Operation{ID: "pay-1"}
	require.NoError(t, r.handle(newMessage("pay 10"), func(msg *message.Message) ([]*message.Message, error) {
		ctx := msg.Context()
		require.NoError(t, r.Exec(ctx, "SAVEPOINT attempt"))
		_, err := r.paying(operation, "undone", "receipt 1", &got)(msg)
		require.NoError(t, err)
		require.NoError(t, r.Exec(ctx, "ROLLBACK TO SAVEPOINT attempt"))
		for range 2 {
			if _, err := r.paying(operation, "pay", "receipt 2", &got)(msg); err != nil {
				return nil, err
			}
			require.Equal(t, "receipt 2", string(got))
		}
		return nil, nil
	}))
	require.NoError(t, r.handle(newMessage("pay 10"), r.paying(operation, "pay", "receipt 3", &got)))
	require.Equal(t, "receipt 2", string(got))
	require.Equal(t, 0, r.Count(t, "undone"))
	require.Equal(t, 1, r.Count(t, "pay"))

	require.NoError(t, r.handle(newMessage("pay 20"), func(msg *message.Message) ([]*message.Message, error) {
		ctx := msg.Context()
		require.NoError(t, r.Exec(ctx, "SAVEPOINT attempt"))
		_, err := r.paying(businesskey.Operation{ID: "pay-2"}, "undone", "receipt 1", &got)(msg)
		require.NoError(t, err)
		return nil, r.Exec(ctx, "ROLLBACK TO SAVEPOINT attempt")
	}))
	require.Equal(t, 0, r.Count(t, "undone"))
	require.Equal(t, 1, r.operationsKept(t), "an operation that was undone is not remembered")
}

// operationSavepointRace has another call do the operation after a savepoint has undone it: its result stays.
func (s *suite) operationSavepointRace(t *testing.T) {
	r := s.opRig(t, Options{}, businesskey.Config{}, false)
	other := s.opBeside(t, r, Options{})
	operation := businesskey.Operation{Scope: consumer, ID: "pay-1"}
	var got []byte
	require.NoError(t, r.handle(newMessage("pay 10"), func(msg *message.Message) ([]*message.Message, error) {
		ctx := msg.Context()
		require.NoError(t, r.Exec(ctx, "SAVEPOINT attempt"))
		_, err := r.paying(operation, "undone", "undone", &got)(msg)
		require.NoError(t, err)
		require.NoError(t, r.Exec(ctx, "ROLLBACK TO SAVEPOINT attempt"))
		if !s.Server { // one writer: nobody can come in
			return nil, nil
		}
		_, err = other.keys.Do(context.Background(), operation, other.pay("pay", "the other's"))
		require.NoError(t, err)
		_, err = r.paying(operation, "undone", "undone", &got)(msg)
		require.Equal(t, "the other's", string(got))
		return nil, err
	}))
	recorded, err := r.keys.Do(t.Context(), operation, r.pay("pay", "the other's"))
	require.NoError(t, err)
	require.Equal(t, "the other's", string(recorded))
	require.Equal(t, 1, r.Count(t, "pay"))
	require.Equal(t, 0, r.Count(t, "undone"))
}

// proposalAborted has a handler that takes up no proposal swallow an SQL error.
func (s *suite) proposalAborted(t *testing.T) {
	r := s.opRig(t, Options{PoolSize: 1}, businesskey.Config{}, true)
	err := r.handleWithin(t, command("pay-1", "pay 10"), func(msg *message.Message) ([]*message.Message, error) {
		_ = r.Write(msg.Context(), "pay")
		_ = r.Exec(msg.Context(), "SELECT 1 FROM nowhere")
		return nil, nil
	})
	require.ErrorIs(t, err, inbox.ErrTxAborted)
	require.Equal(t, 0, r.operationsKept(t))
	r.requireNothing(t)
	err = r.handleWithin(t, command("pay-1", "pay 10"), func(msg *message.Message) ([]*message.Message, error) {
		return nil, r.Exec(msg.Context(), "ROLLBACK")
	})
	require.ErrorIs(t, err, inbox.ErrTxManaged)
	require.Equal(t, 0, r.operationsKept(t))
	r.requireNothing(t)
}

// operationOutbox has what an operation produces go out in its transaction.
func (s *suite) operationOutbox(t *testing.T) {
	bothWays(t, func(t *testing.T, claims bool) {
		env := s.open(t, Options{})
		r := newOpRig(t, env, inbox.Config{Outbox: env.Outbox}, businesskey.Config{}, claims)
		for range 3 {
			msg := inHandler(command("pay-1", "pay 10"), consumer, topicOut)
			for range 2 {
				again := msg.Copy()
				again.SetContext(msg.Context())
				produced, err := r.operate(again, r.producing("pay", 2))
				require.NoError(t, err)
				require.Empty(t, produced, "nothing is left for the router")
			}
		}
		require.Equal(t, []string{"pay-0", "pay-1"}, env.Outgoing(t), "a repeated operation publishes nothing")
		require.Equal(t, 1, r.Count(t, "pay"))
		require.Equal(t, 3, r.Rows(t))
		require.Equal(t, 0, r.recorded(t))
		require.Equal(t, 0, r.scalar(t, "SELECT count(*) FROM "+r.Operations+" WHERE messages IS NOT NULL"))
	})
}

// operationsTableMissing takes the table of operations away: messages without one are handled as ever.
func (s *suite) operationsTableMissing(t *testing.T) {
	bothWays(t, func(t *testing.T, claims bool) {
		r := s.opRig(t, Options{PoolSize: 1}, businesskey.Config{}, claims)
		schema, plain := "", strings.Trim(r.Operations, `"`)
		if at := strings.LastIndex(r.Operations, "."); at >= 0 {
			schema, plain = r.Operations[:at+1], strings.Trim(r.Operations[at+1:], `"`)
		}
		r.mustExec(t, "ALTER TABLE "+r.Operations+" RENAME TO elsewhere")
		missing := func(err error) {
			t.Helper()
			require.ErrorIs(t, err, inbox.ErrSchema)
			require.ErrorContains(t, err, "Migrate")
			require.True(t, inbox.IsTransient(err))
			require.Error(t, r.Cause(err), "the database's own error")
			r.requireIdle(t)
		}
		msg := command("pay-1", "pay 10")
		missing(r.handleWithin(t, msg.Copy(), r.keys.Middleware(r.writes("pay"))))
		_, err := r.keys.Do(t.Context(), businesskey.Operation{Scope: "http", ID: "1"}, r.pay("pay", ""))
		missing(err)
		r.requireNothing(t)
		require.NoError(t, r.handleWithin(t, newMessage("pay 10"), r.writes("plain")))
		_, err = r.Open(t.Context(), sqlinbox.Config{})
		require.ErrorIs(t, err, inbox.ErrSchema)
		require.ErrorContains(t, err, plain)

		r.mustExec(t, "ALTER TABLE "+schema+"elsewhere RENAME TO "+plain)
		require.NoError(t, r.handleWithin(t, msg.Copy(), r.keys.Middleware(r.writes("pay"))))
		require.Equal(t, 1, r.Count(t, "pay"))
	})
}

// operationNoTopic has an operation done in a handler that publishes, and repeated in one that cannot.
func (s *suite) operationNoTopic(t *testing.T) {
	bothWays(t, func(t *testing.T, claims bool) {
		shared := businesskey.Config{Scope: func(*message.Message) string { return "cards" }}
		r := s.opRig(t, Options{}, shared, claims)
		want, err := r.As("charge")(r.keys.Middleware(r.producing("pay", 1)))(inHandler(command("pay-1", "pay 10"), "charge", topicOut))
		require.NoError(t, err)
		msg := command("pay-1", "pay 10")
		_, err = r.As("mail")(r.keys.Middleware(r.writes("pay")))(inHandler(msg.Copy(), "mail", ""))
		require.ErrorIs(t, err, inbox.ErrNoPublishTopic)
		require.ErrorContains(t, err, `"mail"`)
		require.True(t, inbox.IsTransient(err), "the program is put together wrongly")
		require.Equal(t, 1, r.Rows(t), "the message stays in the broker")
		got, err := r.As("mail")(r.keys.Middleware(r.writes("pay")))(inHandler(msg.Copy(), "mail", topicOut))
		require.NoError(t, err)
		require.Equal(t, uuids(want), uuids(got))

		_, err = r.As("mail")(r.keys.Middleware(r.writes("quiet")))(inHandler(command("pay-2", "pay 10"), "mail", ""))
		require.NoError(t, err)
		_, err = r.As("charge")(r.keys.Middleware(r.writes("quiet")))(inHandler(command("pay-2", "pay 10"), "charge", ""))
		require.NoError(t, err, "there is nothing to publish")
		require.Equal(t, 1, r.Count(t, "pay"))
		require.Equal(t, 1, r.Count(t, "quiet"))
	})
}
