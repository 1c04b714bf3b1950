package tests

import (
	"errors"
	"strconv"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/businesskey"
)

// operationNames are the cases about operation ids, scopes and content.
func (s *suite) operationNames() []testCase {
	return []testCase{
		{"A8_OperationCollision", s.operationCollision},
		{"A8_OperationFingerprintOfChosenFields", s.operationFingerprint},
		{"A8_ProposalWithOtherContent", s.proposalOtherContent},
		{"D1_NoOperationID", s.noOperationID},
		{"D2_OddOperationIDsAreKeptApart", s.oddOperationIDs},
		{"D3_LikeOperationIDsAreKeptApart", s.likeOperationIDs},
		{"D4_LongOperationIDs", s.longOperationIDs},
	}
}

// operationNamed is a message of its own whose operation and scope are spelled out in the metadata.
func operationNamed(scope, id string) *message.Message {
	msg := command(id, "pay 10")
	msg.Metadata.Set("scope", scope)
	return msg
}

func scopeNamed() businesskey.Config {
	return businesskey.Config{Scope: func(msg *message.Message) string { return msg.Metadata.Get("scope") }}
}

// requireOperationsApart sends every operation twice: it is done once, with an effect of its own, and then repeated.
func (r *opRig) requireOperationsApart(t *testing.T, names []inbox.Key) {
	t.Helper()
	before := r.operationsKept(t)
	for round, want := range []inbox.Outcome{inbox.OutcomeProcessed, inbox.OutcomeDuplicate} {
		for i, name := range names {
			_, err := r.operate(operationNamed(name.Consumer, name.ID), r.writes(strconv.Itoa(before+i)))
			require.NoError(t, err, "round %d of %q", round, name)
			require.Equal(t, want, r.events.last(t).Outcome, "round %d of %q", round, name)
		}
	}
	require.Equal(t, before+len(names), r.operationsKept(t))
	require.Equal(t, before+len(names), r.scalar(t, "SELECT count(DISTINCT name) FROM "+r.Effects))
	require.Equal(t, before+len(names), r.Total(t))
	require.Equal(t, 0, r.InUse())
}

func (s *suite) oddOperationIDs(t *testing.T) {
	r := s.opRig(t, Options{}, scopeNamed(), true)
	want := map[string]string{}
	var names []inbox.Key
	for _, id := range oddIDs() {
		want[readable(id)] = id
		names = append(names, inbox.Key{Consumer: "s", ID: id})
	}
	r.requireOperationsApart(t, names)
	rows, err := r.DB.QueryContext(t.Context(), "SELECT operation_id FROM "+r.Operations)
	require.NoError(t, err)
	defer rows.Close() //nolint:errcheck // rows.Err tells
	for rows.Next() {
		var stored string
		require.NoError(t, rows.Scan(&stored))
		require.Contains(t, want, stored, "a row that shows none of the ids as it should")
		delete(want, stored)
	}
	require.NoError(t, rows.Err())
	require.Empty(t, want, "ids that no row shows")
	r.requireOperationsApart(t, []inbox.Key{{Consumer: "\x00\xff'\\", ID: "1"}, {Consumer: "\xff\x00\"", ID: "1"}, {Consumer: "🧾", ID: "1"}})
}

func (s *suite) likeOperationIDs(t *testing.T) {
	r := s.opRig(t, Options{}, scopeNamed(), false)
	var names []inbox.Key
	for _, name := range likeNames() {
		names = append(names, inbox.Key{Consumer: "s", ID: name}, inbox.Key{Consumer: name, ID: "1"})
	}
	names = append(names,
		inbox.Key{Consumer: "a", ID: "b/c"}, inbox.Key{Consumer: "a/b", ID: "c"},
		inbox.Key{Consumer: "ab", ID: "c"}, inbox.Key{Consumer: "a", ID: "bc"},
		inbox.Key{Consumer: "a\x00b", ID: "c"}, inbox.Key{Consumer: "a", ID: "\x00bc"},
	)
	r.requireOperationsApart(t, names)
}

func (s *suite) longOperationIDs(t *testing.T) {
	r := s.opRig(t, Options{}, scopeNamed(), true)
	k := strings.Repeat("k", 255)
	most := noise(inbox.MaxIDLength, "most")
	r.requireOperationsApart(t, []inbox.Key{
		{Consumer: "s", ID: k},
		{Consumer: "s", ID: k + "a"},
		{Consumer: "s", ID: k + "b"},
		{Consumer: "s", ID: k + strings.Repeat("a", 45)},
		{Consumer: "s", ID: k + strings.Repeat("b", 45)},
		{Consumer: k + strings.Repeat("a", 45), ID: "1"},
		{Consumer: k + strings.Repeat("b", 45), ID: "1"},
		{Consumer: "s", ID: most},
		{Consumer: "s", ID: most[:len(most)-1]},
		{Consumer: most, ID: "1"},
	})
	kept := r.operationsKept(t)
	for part, msg := range map[string]*message.Message{"id": operationNamed("s", most+"k"), "scope": operationNamed(most+"k", "1")} {
		_, err := r.operate(msg, func(msg *message.Message) ([]*message.Message, error) { return nil, notCalled(t)(msg.Context()) })
		require.ErrorIs(t, err, inbox.ErrOperationIDTooLong)
		require.ErrorContains(t, err, part)
		require.True(t, inbox.IsPermanent(err))
		_, err = r.keys.Do(t.Context(), businesskey.Operation{Scope: msg.Metadata.Get("scope"), ID: msg.Metadata.Get("operation_id")}, r.pay("wrong", ""))
		require.ErrorIs(t, err, inbox.ErrOperationIDTooLong)
	}
	require.Equal(t, kept, r.operationsKept(t))
}

func (s *suite) noOperationID(t *testing.T) {
	bothWays(t, func(t *testing.T, claims bool) {
		r := s.opRig(t, Options{}, businesskey.Config{}, claims)
		for _, payload := range []string{"pay 10", "pay 20"} {
			_, err := r.operate(newMessage(payload), r.writes("wrong"))
			require.ErrorIs(t, err, inbox.ErrNoOperationID)
			require.True(t, inbox.IsPermanent(err))
			require.False(t, inbox.IsTransient(err))
			require.Equal(t, inbox.LayerOperation, r.events.last(t).Layer)
		}
		r.requireNothing(t)

		refused := newOpRig(t, r.Env, inbox.Config{}, businesskey.Config{
			OperationID: func(*message.Message) (string, error) { return "", errors.New("cannot be read") },
		}, claims)
		_, err := refused.operate(command("1", "pay 10"), r.writes("wrong"))
		require.ErrorIs(t, err, inbox.ErrOperationIDRefused)
		require.ErrorContains(t, err, "cannot be read")
		require.True(t, inbox.IsPermanent(err))
		r.requireNothing(t)
		require.Equal(t, 0, r.operationsKept(t))

		lenient := newOpRig(t, r.Env, inbox.Config{}, businesskey.Config{Missing: businesskey.PassThrough}, claims)
		for n := range 2 {
			_, err := lenient.operate(newMessage("pay 10"), lenient.writes("passed"))
			require.NoError(t, err)
			require.EqualValues(t, n+1, lenient.keys.PassedThrough())
		}
		_, err = lenient.operate(command("1", "pay 10"), lenient.writes("pay"))
		require.NoError(t, err)
		require.EqualValues(t, 2, lenient.keys.PassedThrough())
		require.Equal(t, 2, r.Count(t, "passed"))
		require.Equal(t, 1, r.operationsKept(t))
	})
}

// operationCollision changes who is remembered under the operation's storage key.
func (s *suite) operationCollision(t *testing.T) {
	for _, part := range []string{"scope", "operation_id"} {
		t.Run(part, func(t *testing.T) {
			bothWays(t, func(t *testing.T, claims bool) {
				r := s.opRig(t, Options{}, businesskey.Config{}, claims)
				_, err := r.operate(command("pay-1", "pay 10"), r.writes("pay"))
				require.NoError(t, err)
				r.alter(t, "UPDATE "+r.Operations+" SET "+part+" = 'another'")
				_, err = r.operate(command("pay-1", "pay 10"), r.writes("wrong"))
				require.ErrorIs(t, err, inbox.ErrKeyCollision)
				require.True(t, inbox.IsPermanent(err))
				_, err = r.keys.Do(t.Context(), businesskey.Operation{Scope: consumer, ID: "pay-1", Content: []byte("pay 10")}, r.pay("wrong", ""))
				require.ErrorIs(t, err, inbox.ErrKeyCollision)
				require.Equal(t, 1, r.Total(t))
			})
		})
	}
}

// operationFingerprint has a producer that stamps every command anew: only the first field matters.
func (s *suite) operationFingerprint(t *testing.T) {
	bothWays(t, func(t *testing.T, claims bool) {
		r := s.opRig(t, Options{}, businesskey.Config{Fingerprint: func(msg *message.Message) []byte {
			amount, _, _ := strings.Cut(string(msg.Payload), ";")
			return []byte(amount)
		}}, claims)
		for _, payload := range []string{"pay 10;12:00", "pay 10;12:01"} {
			_, err := r.operate(command("pay-1", payload), r.writes("pay"))
			require.NoError(t, err)
		}
		_, err := r.operate(command("pay-1", "pay 20;12:00"), r.writes("wrong"))
		r.mismatched(t, err)
		require.Equal(t, 1, r.Total(t))
	})
}

// proposalOtherContent has a handler ask for the operation that was claimed with its message, with other content: the
// proposal was never an operation, so nothing is compared with it.
func (s *suite) proposalOtherContent(t *testing.T) {
	r := s.opRig(t, Options{}, businesskey.Config{}, true)
	operation := businesskey.Operation{ID: "pay-1", Content: []byte("the content of the call")}
	var got []byte
	require.NoError(t, r.handle(command("pay-1", "pay 10"), func(msg *message.Message) ([]*message.Message, error) {
		for range 2 {
			if _, err := r.paying(operation, "pay", "receipt", &got)(msg); err != nil {
				return nil, err
			}
		}
		return nil, nil
	}))
	require.Equal(t, "receipt", string(got))
	require.Equal(t, 1, r.operationsKept(t))
	require.NoError(t, r.handle(command("pay-1", "pay 10"), r.paying(operation, "pay", "another", &got)))
	require.Equal(t, "receipt", string(got))
	_, err := r.operate(command("pay-1", "pay 10"), r.writes("wrong"))
	r.mismatched(t, err)
	require.Equal(t, 1, r.Total(t))

	// Undone by a savepoint, it leaves no operation, nor a proposal.
	require.NoError(t, r.handle(command("pay-2", "pay 10"), func(msg *message.Message) ([]*message.Message, error) {
		ctx := msg.Context()
		require.NoError(t, r.Exec(ctx, "SAVEPOINT attempt"))
		_, err := r.keys.Do(ctx, businesskey.Operation{ID: "pay-2"}, r.pay("undone", ""))
		require.NoError(t, err)
		return nil, r.Exec(ctx, "ROLLBACK TO SAVEPOINT attempt")
	}))
	require.Equal(t, 0, r.Count(t, "undone"))
	require.Equal(t, 1, r.operationsKept(t))
}
