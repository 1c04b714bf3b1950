package engine_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox/internal/engine"
)

// The numbers were computed elsewhere. Two versions of a program that run side by side during a deployment must take
// the same lock for the same message.
func TestLockIDIsPinned(t *testing.T) {
	t.Parallel()
	key := inbox.Key{Consumer: "charge", ID: "42"}.Storage()
	require.Equal(t, int64(2680771951546998304), engine.NewLockSpace("public", "watermill_inbox", "inbox").ID(key))
	require.Equal(t, int64(-3935536406114902748), engine.NewLockSpace("public", "watermill_inbox", "migrations").ID(inbox.StorageKey{}))
}

func TestLockSpacesAreKeptApart(t *testing.T) {
	t.Parallel()
	key := inbox.Key{Consumer: "charge", ID: "42"}.Storage()
	seen := map[int64]bool{}
	for _, parts := range [][]string{
		{"a", "b", "c"}, {"ab", "", "c"}, {"a", "bc", ""}, {"", "ab", "c"}, {"abc"}, {"a", "b"}, {}, {""}, {"", ""},
	} {
		id := engine.NewLockSpace(parts...).ID(key)
		require.False(t, seen[id], parts)
		seen[id] = true
	}
}

func TestClaimIsTheDeliveryAsItIsStored(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	d := inbox.Delivery{
		Key:         inbox.Key{Consumer: "billing/ö", Source: "\x00", ID: `a\b`},
		Handler:     "charge",
		Topic:       "orders\n",
		Fingerprint: inbox.Fingerprint{1, 2, 3},
		MessageTime: at,
		KeyTime:     at,
		HasKeyTime:  true,
	}
	space := engine.NewLockSpace("public", "watermill_inbox", "inbox")
	backend := newFakeBackend()
	_, err := engine.New(backend, engine.Settings{LockSpace: space}).Process(t.Context(), d, use)
	require.NoError(t, err)
	require.Len(t, backend.claims, 1)
	require.Equal(t, engine.Claim{
		Key:         d.Key.StorageAt(at),
		Fingerprint: d.Fingerprint,
		MessageTime: at,
		Consumer:    `billing/\xc3\xb6`,
		Source:      `\x00`,
		MessageID:   `a\x5cb`,
		Topic:       `orders\x0a`,
		HorizonID:   engine.HorizonID("billing/ö", "\x00", ""),
		LockID:      space.ID(d.Key.StorageAt(at)),
	}, *backend.claims[0])
}

// Every kind of row that a taken key may have, in the order of the rules: identity, content, then what became of it.
func TestATakenKey(t *testing.T) {
	t.Parallel()
	const (
		duplicate = inbox.OutcomeDuplicate
		queued    = inbox.OutcomeQueued
	)
	for _, tt := range []struct {
		name           string
		change         func(*engine.Row)
		acceptMismatch bool
		outcome        inbox.Outcome
		mismatch       bool
		err            error
	}{
		{name: "duplicate", change: func(*engine.Row) {}, outcome: duplicate},
		{name: "queued", change: func(r *engine.Row) { r.Processed = false }, outcome: queued},
		{name: "late duplicate", change: func(r *engine.Row) { r.Late = true }, outcome: duplicate},
		{name: "late and queued", change: func(r *engine.Row) { r.Late, r.Processed = true, false }, outcome: queued},
		{name: "late", change: func(r *engine.Row) { *r = engine.Row{Late: true} }, err: inbox.ErrLate},
		{name: "late with MismatchReport", change: func(r *engine.Row) { *r = engine.Row{Late: true} }, acceptMismatch: true, err: inbox.ErrLate},
		{name: "other consumer", change: func(r *engine.Row) { r.Consumer = "d" }, err: inbox.ErrKeyCollision},
		{name: "other source", change: func(r *engine.Row) { r.Source = "d" }, err: inbox.ErrKeyCollision},
		{name: "other id", change: func(r *engine.Row) { r.MessageID = "43" }, err: inbox.ErrKeyCollision},
		{name: "id in another case", change: func(r *engine.Row) { r.Consumer = "C" }, err: inbox.ErrKeyCollision},
		{name: "id with a space", change: func(r *engine.Row) { r.MessageID = "42 " }, err: inbox.ErrKeyCollision},
		{name: "other id and content", change: func(r *engine.Row) { r.MessageID, r.Fingerprint = "43", inbox.Fingerprint{9} }, err: inbox.ErrKeyCollision},
		{name: "other id with MismatchReport", change: func(r *engine.Row) { r.MessageID, r.Fingerprint = "43", inbox.Fingerprint{9} }, acceptMismatch: true, err: inbox.ErrKeyCollision},
		{name: "other content", change: func(r *engine.Row) { r.Fingerprint = inbox.Fingerprint{9} }, err: inbox.ErrMismatch},
		{name: "other content, queued", change: func(r *engine.Row) { r.Fingerprint, r.Processed = inbox.Fingerprint{9}, false }, err: inbox.ErrMismatch},
		{name: "other content, late", change: func(r *engine.Row) { r.Fingerprint, r.Late = inbox.Fingerprint{9}, true }, err: inbox.ErrMismatch},
		{name: "other content reported", change: func(r *engine.Row) { r.Fingerprint = inbox.Fingerprint{9} }, acceptMismatch: true, outcome: duplicate, mismatch: true},
		{name: "other content reported, queued", change: func(r *engine.Row) { r.Fingerprint, r.Processed = inbox.Fingerprint{9}, false }, acceptMismatch: true, outcome: queued, mismatch: true},
		{name: "same content with MismatchReport", change: func(*engine.Row) {}, acceptMismatch: true, outcome: duplicate},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				d := delivery
				d.AcceptMismatch = tt.acceptMismatch
				d.MessageTime = time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
				row := rowOf(d)
				tt.change(row)
				backend := newFakeBackend(taken(row))
				result, err := engine.New(backend, engine.Settings{}).Process(t.Context(), d, never(t))
				require.Len(t, backend.claims, 1, "answered at once")
				require.Zero(t, result.TxRetries)
				require.Zero(t, result.Wait)
				if tt.err == nil {
					require.NoError(t, err)
					require.Equal(t, tt.outcome, result.Outcome)
					require.Equal(t, tt.mismatch, result.Mismatch)
					require.Empty(t, result.Messages)
					return
				}
				requireError(t, err, inbox.PhaseClaim, tt.err)
				require.True(t, inbox.IsPermanent(err))
				if errors.Is(tt.err, inbox.ErrLate) {
					require.ErrorContains(t, err, "2026-01-02T03:04:05.000000006Z")
				}
			})
		})
	}
}

// The names of the schemes stand in the tables.
func TestKeyScheme(t *testing.T) {
	t.Parallel()
	const plain, keyTime = "1", "1+key_time"
	for _, tt := range []struct {
		have       string // empty: none yet
		hasKeyTime bool
		registers  string
		ok         bool
	}{
		{"", false, plain, true},
		{"", true, keyTime, true},
		{plain, false, plain, true},
		{keyTime, true, keyTime, true},
		{plain, true, keyTime, false},
		{keyTime, false, plain, false},
		{"2", false, plain, false}, // of a later version
	} {
		t.Run(tt.have+" "+tt.registers, func(t *testing.T) {
			t.Parallel()
			backend := newFakeBackend()
			if tt.have != "" {
				backend.schemes["c"] = tt.have
			}
			d := delivery
			d.HasKeyTime = tt.hasKeyTime
			e := engine.New(backend, engine.Settings{})
			for range 2 {
				_, err := e.Process(t.Context(), d, use)
				if tt.ok {
					require.NoError(t, err)
					require.Equal(t, tt.registers, backend.schemes["c"])
					continue
				}
				requireError(t, err, inbox.PhaseClaim, inbox.ErrKeyScheme)
				require.ErrorContains(t, err, `it is "`+tt.have+`", this program has "`+tt.registers+`"`)
				require.True(t, inbox.IsTransient(err))
				require.Empty(t, backend.claims, "nothing is claimed under another key")
			}
			require.Equal(t, 1, backend.asked, "once per consumer and process")
		})
	}
}

func TestKeySchemeIsAskedForEachConsumer(t *testing.T) {
	t.Parallel()
	backend := newFakeBackend()
	e := engine.New(backend, engine.Settings{})
	for _, consumer := range []string{"a", "b", "a", "b", "\x00"} {
		d := delivery
		d.Key.Consumer = consumer
		_, err := e.Process(t.Context(), d, use)
		require.NoError(t, err)
	}
	require.Equal(t, 3, backend.asked)
	require.Contains(t, backend.schemes, `\x00`, "as readable text")
}

func TestAnErrorOfTheKeySchemeIsNotRemembered(t *testing.T) {
	t.Parallel()
	backend := newFakeBackend()
	backend.schemeErr = dbError{engine.FaultSchema}
	e := engine.New(backend, engine.Settings{})
	_, err := e.Process(t.Context(), delivery, never(t))
	requireError(t, err, inbox.PhaseClaim, inbox.ErrSchema, backend.schemeErr)

	backend.schemeErr = errors.New("connection refused")
	_, err = e.Process(t.Context(), delivery, never(t))
	requireError(t, err, inbox.PhaseClaim, inbox.ErrUnavailable, backend.schemeErr)

	backend.schemeErr = context.Canceled
	_, err = e.Process(t.Context(), delivery, never(t))
	requireError(t, err, inbox.PhaseClaim, context.Canceled)
	require.NotErrorIs(t, err, inbox.ErrUnavailable)

	backend.schemeErr = nil
	_, err = e.Process(t.Context(), delivery, use)
	require.NoError(t, err)
	require.Equal(t, 6, backend.asked, "a lost connection is tried once more")
}

func TestKeySchemeRaces(t *testing.T) {
	t.Parallel()
	backend := newFakeBackend()
	e := engine.New(backend, engine.Settings{})
	errs := make([]error, 16)
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() { _, errs[i] = e.Process(t.Context(), delivery, use) })
	}
	wg.Wait()
	require.NoError(t, errors.Join(errs...))
}
