package tests

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	inbox "github.com/watermill-contrib/watermill-inbox"
)

// copies are the cases about copies of one message (A).
func (s *suite) copies() []testCase {
	cases := []testCase{
		{"A1_FailsFirstThenHandled", s.a1},
		{"A2_StormOfCopies", s.a2},
		{"A3_LoserIsQuiet", s.a3},
		{"A4_CopyWaitsForTheHandler", s.a4},
		{"A4_CopyTakesOverFromAFailedHandler", s.a4TakesOver},
		{"A4_CancelledHandlerWithoutGrace", s.a4Cancelled},
		{"A4_CancelledHandlerWithGrace", s.a4Grace},
		{"A4_GraceEnds", s.a4GraceEnds},
		{"A4_GraceDoesNotMoveADeadline", s.a4Deadline},
		{"A4_FailFast", s.a4FailFast},
		{"A4_FailFastOfANewConsumer", s.a4Cold},
		{"A4_StoreOpensBesideAHandler", s.a4Opens},
		{"A4_WaitIsBounded", s.a4Bounded},
		{"A4_WaitObeysTheContext", s.a4Context},
		{"A5_DuplicateLeavesTheConnectionUsable", s.a5},
		{"A7_TwoHandlersOfOneTopic", s.a7Handlers},
		{"A7_NamespacesKeepServicesApart", s.a7Namespaces},
		{"A7_SchemasKeepTenantsApart", s.a7Schemas},
		{"A7_PrefixesKeepInboxesApart", s.a7Prefixes},
		{"A8_OtherPayloadIsRefused", s.a8},
		{"A8_OtherPayloadWhileQueued", s.a8Queued},
		{"A8_OtherPayloadWhileInFlight", s.a8InFlight},
		{"A8_OtherPayloadAfterAFailure", s.a8Failed},
		{"A8_OtherPayloadIsReported", s.a8Report},
		{"A8_OtherPayloadIsReportedWhileInFlight", s.a8ReportInFlight},
		{"A8_FingerprintOfChosenFields", s.a8Fingerprint},
		{"A8_ChangedByItsOwnHandler", s.a8OwnHandler},
		{"A8_CollisionIsRefused", s.a8Collision},
		{"A8_LateIsRefused", s.a8Late},
		{"A8_RefusedGoesToThePoisonQueue", s.a8Poison},
		{"A9_EqualPayloads", s.a9},
		{"A10_KilledFirstCopyIsNotPoisoned", s.a10},
		{"A11_OneConsumerBehindTwoBrokers", s.a11},
		{"A12_MiddlewareTwice", s.a12Twice},
		{"A12_AnotherConsumerInside", s.a12Consumer},
		{"A12_AnotherMessageInside", s.a12Message},
		{"A12_AnotherStoreInside", s.a12Store},
		{"A12_SameMessageWithoutTheContext", s.a12Detached},
		{"A12_ContextThatOutlivesItsMessage", s.a12Preserved},
	}
	if s.Server { // an embedded database waits for its one writer with a connection in hand
		cases = append(cases, testCase{"A4_WaitingHoldsNoConnection", s.a4Connections})
	}
	for _, level := range s.Isolation {
		cases = append(cases, s.a6(level))
	}
	return cases
}

// copyTasks are what the children of these cases do.
func (s *suite) copyTasks() map[string]taskFunc {
	return map[string]taskFunc{
		"storm": s.stormChild,
		"a10":   s.a10Child,
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
	r.told(t, map[inbox.Outcome]int{inbox.OutcomeFailed: 1, inbox.OutcomeProcessed: 1, inbox.OutcomeDuplicate: 1})
}

func (s *suite) a5(t *testing.T) {
	s.inBothPlaces(t, Options{PoolSize: 1}, inbox.Config{}, func(t *testing.T, r, elsewhere *rig) {
		for range 3 {
			msg := newMessage("pay 10")
			require.NoError(t, r.handle(msg.Copy(), r.writes("pay")))
			require.NoError(t, elsewhere.handle(msg.Copy(), elsewhere.writes("pay")), "no unique violation surfaces")
			require.NoError(t, elsewhere.handle(newMessage("other"), func(msg *message.Message) ([]*message.Message, error) {
				return nil, elsewhere.Exec(msg.Context(), "SELECT 1")
			}), "the only connection is usable after a duplicate")
		}
		require.Equal(t, 3, r.Count(t, "pay"))
		elsewhere.requireIdle(t)
	})
}

func (s *suite) a9(t *testing.T) {
	r := s.rig(t, Options{}, inbox.Config{})
	for range 2 {
		require.NoError(t, r.handle(newMessage("pay 10"), r.writes("pay")))
	}
	// Two that are handled at the same time, where the database can do that.
	stop := newGate(t)
	first := r.start(newMessage("pay 10"), stop.after(r.writes("pay")))
	stop.wait(t)
	second := r.start(newMessage("pay 10"), r.writes("pay"))
	if s.Server {
		require.NoError(t, second.end(t))
	}
	stop.open()
	require.NoError(t, first.end(t))
	require.NoError(t, second.end(t))

	require.Equal(t, 4, r.Count(t, "pay"))
	require.Equal(t, 4, r.Rows(t))
	r.told(t, map[inbox.Outcome]int{inbox.OutcomeProcessed: 4})
}

// told holds what the observer was told against the outcomes that were expected, and no others.
func (r *rig) told(t *testing.T, want map[inbox.Outcome]int) {
	t.Helper()
	got := map[inbox.Outcome]int{}
	for _, event := range r.events.all() {
		got[event.Outcome]++
	}
	require.Equal(t, want, got)
}

// await waits for a signal.
func await(t *testing.T, signal <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-signal:
	case <-time.After(patience):
		require.FailNow(t, "waited too long for "+what)
	}
}
