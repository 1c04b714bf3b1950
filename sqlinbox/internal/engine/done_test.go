package engine_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox/internal/engine"
)

// requireSeen delivers a copy that must be answered without the database.
func requireSeen(t *testing.T, e *engine.Engine, backend *fakeBackend, d inbox.Delivery) inbox.Result {
	t.Helper()
	before := len(backend.claims)
	result, err := e.Process(t.Context(), d, never(t))
	require.NoError(t, err)
	require.Equal(t, inbox.OutcomeDuplicate, result.Outcome)
	require.Len(t, backend.claims, before, "the database was asked")
	return result
}

// requireAsked delivers a copy for which the database must be asked.
func requireAsked(t *testing.T, e *engine.Engine, backend *fakeBackend, d inbox.Delivery) {
	t.Helper()
	before := len(backend.claims)
	_, err := e.Process(t.Context(), d, doNothing)
	require.NoError(t, err)
	require.Len(t, backend.claims, before+1, "the database was not asked")
}

func TestASeenDuplicateAsksNobody(t *testing.T) {
	t.Parallel()
	for name, first := range map[string]step{"committed here": claimed, "read as a duplicate": taken(rowOf(delivery))} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			backend := newFakeBackend(first)
			e := engine.New(backend, engine.Settings{})
			process(t, e, delivery)
			for range 3 {
				require.Equal(t, inbox.Result{Outcome: inbox.OutcomeDuplicate}, requireSeen(t, e, backend, delivery))
			}
			for _, change := range []func(*inbox.Key){
				func(k *inbox.Key) { k.Consumer = "other" },
				func(k *inbox.Key) { k.Source = "other" },
				func(k *inbox.Key) { k.ID = "other" },
			} {
				other := delivery
				change(&other.Key)
				backend.steps = []step{claimed}
				requireAsked(t, e, backend, other)
			}
		})
	}
}

// The content is compared without the database, too.
func TestOtherContentOfASeenKey(t *testing.T) {
	t.Parallel()
	for name, first := range map[string]step{"committed here": claimed, "read as a duplicate": taken(rowOf(delivery))} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			backend := newFakeBackend(first)
			e := engine.New(backend, engine.Settings{})
			process(t, e, delivery)

			other := delivery
			other.Fingerprint = inbox.Fingerprint{2}
			_, err := e.Process(t.Context(), other, never(t))
			requireError(t, err, inbox.PhaseClaim, inbox.ErrMismatch)
			require.True(t, inbox.IsPermanent(err))
			require.Len(t, backend.claims, 1)
			require.False(t, requireSeen(t, e, backend, delivery).Mismatch, "the right copy still is a duplicate")

			other.AcceptMismatch = true
			require.True(t, requireSeen(t, e, backend, other).Mismatch)
			require.False(t, requireSeen(t, e, backend, delivery).Mismatch, "what was accepted does not become the content")
		})
	}
}

// A duplicate with other content that is accepted teaches the fingerprint of the row, not its own.
func TestAnAcceptedMismatchIsRememberedAsTheRowSays(t *testing.T) {
	t.Parallel()
	backend := newFakeBackend(taken(rowOf(delivery)))
	e := engine.New(backend, engine.Settings{})
	other := delivery
	other.Fingerprint, other.AcceptMismatch = inbox.Fingerprint{2}, true
	require.True(t, process(t, e, other).Mismatch)
	require.False(t, requireSeen(t, e, backend, delivery).Mismatch)
	require.True(t, requireSeen(t, e, backend, other).Mismatch)
}

// Recorded messages are in the database only, and stay there until their ack.
func TestAKeyWithRecordedMessagesAsksTheDatabase(t *testing.T) {
	t.Parallel()
	d := delivery
	d.Record = true
	backend := newFakeBackend()
	e := engine.New(backend, engine.Settings{})
	_, err := e.Process(t.Context(), d, func(context.Context) ([]*message.Message, error) {
		return []*message.Message{message.NewMessage("1", nil)}, nil
	})
	require.NoError(t, err)

	row := rowOf(d)
	row.RecordedBy, row.Recorded = "charge", backend.txs[0].record.Messages
	backend.steps = []step{taken(row)}
	for copies := range 3 {
		result, err := e.Process(t.Context(), d, never(t))
		require.NoError(t, err)
		require.Len(t, result.Messages, 1)
		require.Len(t, backend.claims, 2+copies)
	}
	backend.steps = []step{taken(rowOf(d))} // acked and deleted
	requireAsked(t, e, backend, d)
	requireSeen(t, e, backend, d)
}

func TestDoneTTL(t *testing.T) {
	t.Parallel()
	for name, ttl := range map[string]time.Duration{"default": time.Minute, "own": time.Second} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				settings := engine.Settings{DoneTTL: ttl}
				if name == "default" {
					settings = engine.Settings{}
				}
				backend := newFakeBackend(claimed, taken(rowOf(delivery)))
				e := engine.New(backend, settings)
				process(t, e, delivery)
				time.Sleep(ttl)
				requireSeen(t, e, backend, delivery)
				time.Sleep(time.Nanosecond)
				requireAsked(t, e, backend, delivery) // a hit does not prolong it
				requireSeen(t, e, backend, delivery)
			})
		})
	}
	t.Run("off", func(t *testing.T) {
		t.Parallel()
		backend := newFakeBackend()
		e := engine.New(backend, engine.Settings{DoneTTL: -1})
		for range 3 {
			requireAsked(t, e, backend, delivery)
		}
		e.ConnectionMet()
	})
}

func TestDoneKeysAreTheLatest(t *testing.T) {
	t.Parallel()
	backend := newFakeBackend()
	e := engine.New(backend, engine.Settings{DoneKeys: 2})
	list := manyDeliveries(3)
	process(t, e, list[0])
	process(t, e, list[1])
	requireSeen(t, e, backend, list[0])
	process(t, e, list[2])
	requireSeen(t, e, backend, list[0])
	requireSeen(t, e, backend, list[2])
	requireAsked(t, e, backend, list[1])
}

// What was learnt of a server that is lost may not be true of the next one.
func TestDoneKeysAreEmptied(t *testing.T) {
	t.Parallel()
	lost := dbError{engine.FaultLost}
	fails := func(err error) step {
		return func(context.Context) (engine.Answer, error) { return engine.Answer{}, err }
	}
	for _, tt := range []struct {
		name    string
		emptied bool
		steps   []step
		commit  error
		work    error
		end     error
	}{
		{name: "lost at the claim", emptied: true, steps: []step{fails(lost), claimed}},
		{name: "no answer to the claim", emptied: true, steps: []step{fails(errors.New("connection refused"))}},
		{name: "lost at the commit", emptied: true, commit: lost},
		{name: "no answer to the commit", emptied: true, commit: errors.New("unexpected EOF")},
		{name: "lost in the handler", emptied: true, work: fmt.Errorf("charge: %w", lost)},
		{name: "lost at the rollback", emptied: true, work: errors.New("declined"), end: errors.New("broken pipe")},
		{name: "processed"},
		{name: "failed", work: errors.New("declined")},
		{name: "a conflict at the claim", steps: []step{fails(dbError{engine.FaultSerialization}), claimed}},
		{name: "in flight elsewhere", steps: []step{free}},
		{name: "an error of the claim", steps: []step{fails(dbError{engine.FaultUnavailable})}},
		{name: "an error of the commit", commit: dbError{engine.FaultOther}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				backend := newFakeBackend()
				e := engine.New(backend, engine.Settings{InFlightWait: -1})
				process(t, e, delivery)

				backend.steps = slices.Concat(tt.steps, []step{claimed})
				if tt.commit != nil {
					backend.commit = func(context.Context) error { return tt.commit }
				}
				backend.end = func(context.Context) error { return tt.end }
				other := delivery
				other.Key.ID = "other"
				_, _ = e.Process(t.Context(), other, func(context.Context) ([]*message.Message, error) { return nil, tt.work })

				backend.steps, backend.commit, backend.end = []step{taken(rowOf(delivery))}, nil, nil
				if tt.emptied {
					requireAsked(t, e, backend, delivery)
				}
				requireSeen(t, e, backend, delivery)
			})
		})
	}
	t.Run("not a context that ends while a connection is waited for", func(t *testing.T) {
		t.Parallel()
		backend := newFakeBackend()
		e := engine.New(backend, engine.Settings{})
		process(t, e, delivery)
		ctx, cancel := context.WithCancel(t.Context())
		backend.steps = []step{func(context.Context) (engine.Answer, error) {
			cancel()
			return engine.Answer{}, context.Canceled
		}}
		other := delivery
		other.Key.ID = "other"
		_, err := e.Process(ctx, other, never(t))
		require.ErrorIs(t, err, context.Canceled)
		requireSeen(t, e, backend, delivery)
	})
	t.Run("a connection that is new", func(t *testing.T) {
		t.Parallel()
		backend := newFakeBackend()
		e := engine.New(backend, engine.Settings{})
		process(t, e, delivery)
		e.ConnectionMet()
		requireAsked(t, e, backend, delivery)
	})
}

// A key whose claim began before the done keys were emptied belongs to the server that was lost.
func TestNoKeyEntersAfterAnEmptyingThatItsClaimWasBefore(t *testing.T) {
	t.Parallel()
	for _, place := range []string{"claim", "read", "handler", "commit"} {
		t.Run(place, func(t *testing.T) {
			t.Parallel()
			backend := newFakeBackend()
			e := engine.New(backend, engine.Settings{})
			emptied := false
			at := func(here string) {
				if here == place && !emptied {
					emptied = true
					e.ConnectionMet()
				}
			}
			row := taken(rowOf(delivery))
			backend.steps = []step{func(ctx context.Context) (engine.Answer, error) {
				at("claim")
				if place == "read" {
					at("read")
					return row(ctx)
				}
				return claimed(ctx)
			}, row}
			backend.commit = func(context.Context) error {
				at("commit")
				return nil
			}
			_, err := e.Process(t.Context(), delivery, func(context.Context) ([]*message.Message, error) {
				at("handler")
				return nil, nil
			})
			require.NoError(t, err)
			require.True(t, emptied)
			requireAsked(t, e, backend, delivery)
			requireSeen(t, e, backend, delivery) // its claim came after it
		})
	}
}

// The transaction that is run again has a claim of its own.
func TestAKeyWhoseLastClaimCameAfterTheEmptyingEnters(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		backend := newFakeBackend()
		e := engine.New(backend, engine.Settings{})
		tries := 0
		_, err := e.Process(t.Context(), delivery, func(context.Context) ([]*message.Message, error) {
			if tries++; tries == 1 {
				e.ConnectionMet()
				return nil, dbError{engine.FaultSerialization}
			}
			return nil, nil
		})
		require.NoError(t, err)
		requireSeen(t, e, backend, delivery)
	})
}

// Nothing but an acknowledged COMMIT or a duplicate that was read makes a message known.
func TestOnlyHandledMessagesAreKnown(t *testing.T) {
	t.Parallel()
	wrong := rowOf(delivery)
	wrong.Fingerprint = inbox.Fingerprint{2}
	collision := rowOf(delivery)
	collision.MessageID = "another"
	queued := rowOf(delivery)
	queued.Processed = false
	for name, tt := range map[string]struct {
		first  step
		commit error
		work   func(b *fakeBackend) error
	}{
		"failed":               {work: func(*fakeBackend) error { return errors.New("declined") }},
		"doomed":               {work: func(b *fakeBackend) error { b.txs[0].scope.Doom(inbox.ErrTxManaged); return nil }},
		"lost in the handler":  {work: func(*fakeBackend) error { return dbError{engine.FaultLost} }},
		"refused by COMMIT":    {commit: dbError{engine.FaultOther}},
		"ended by the handler": {commit: inbox.ErrTxManaged},
		"aborted":              {commit: inbox.ErrTxAborted},
		"an unknown COMMIT":    {commit: dbError{engine.FaultLost}},
		"no answer to COMMIT":  {commit: context.DeadlineExceeded},
		"queued":               {first: taken(queued)},
		"late":                 {first: taken(&engine.Row{Late: true})},
		"other content":        {first: taken(wrong)},
		"another message":      {first: taken(collision)},
		"in flight elsewhere":  {first: free},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			backend := newFakeBackend()
			if tt.first != nil {
				backend.steps = []step{tt.first}
			}
			if tt.commit != nil {
				backend.commit = func(context.Context) error { return tt.commit }
			}
			e := engine.New(backend, engine.Settings{InFlightWait: -1})
			result, err := e.Process(t.Context(), delivery, func(context.Context) ([]*message.Message, error) {
				if tt.work != nil {
					return nil, tt.work(backend)
				}
				return nil, nil
			})
			require.True(t, err != nil || result.Outcome == inbox.OutcomeQueued)
			backend.steps, backend.commit = []step{claimed}, nil
			requireAsked(t, e, backend, delivery)
			requireSeen(t, e, backend, delivery)
		})
	}
	t.Run("panicked", func(t *testing.T) {
		t.Parallel()
		backend := newFakeBackend()
		e := engine.New(backend, engine.Settings{})
		require.Panics(t, func() {
			_, _ = e.Process(t.Context(), delivery, func(context.Context) ([]*message.Message, error) { panic("mine") })
		})
		requireAsked(t, e, backend, delivery)
	})
}
