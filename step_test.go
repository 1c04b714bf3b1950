package inbox_test

import (
	"context"
	"errors"
	"math"
	"regexp"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	inbox "github.com/watermill-contrib/watermill-inbox"
)

type charge struct {
	ID    string `json:"id"`
	Cents int    `json:"cents"`
}

func TestStepRunsOnce(t *testing.T) {
	t.Parallel()
	lease := newFakeLease(nil, inbox.Delivery{})
	ctx := inbox.WithLease(t.Context(), lease)
	ran := 0
	for range 3 {
		got, err := inbox.Step(ctx, "charge", func(context.Context) (charge, error) {
			ran++
			return charge{"ch_1", 100}, nil
		})
		require.NoError(t, err)
		require.Equal(t, charge{"ch_1", 100}, got)
	}
	require.Equal(t, 1, ran)
	require.JSONEq(t, `{"id":"ch_1","cents":100}`, string(lease.steps["charge"]), "stored as JSON")

	pointer, err := inbox.Step(ctx, "charge", func(context.Context) (*charge, error) { return nil, nil }) //nolint:nilnil // not called
	require.NoError(t, err)
	require.Equal(t, &charge{"ch_1", 100}, pointer)
	nothing, err := inbox.Step(ctx, "notify", func(context.Context) (struct{}, error) { return struct{}{}, nil })
	require.NoError(t, err)
	require.Empty(t, nothing)
	require.Len(t, lease.steps, 2, "each name is a step of its own")
}

func TestStepGivesWhatIsStored(t *testing.T) {
	t.Parallel()
	lease := newFakeLease(nil, inbox.Delivery{})
	ctx := inbox.WithLease(t.Context(), lease)
	lease.steps["charge"] = []byte(`{"id":"ch_1"}`) // another attempt was first
	got, err := inbox.Step(ctx, "charge", func(context.Context) (charge, error) { return charge{ID: "ch_2"}, nil })
	require.NoError(t, err)
	require.Equal(t, "ch_1", got.ID)

	lease.steps["charge"] = []byte(`[]`) // by an older version of the program
	got, err = inbox.Step(ctx, "charge", func(context.Context) (charge, error) { return charge{}, nil })
	require.ErrorContains(t, err, `stored result of step "charge"`)
	require.Empty(t, got)
}

func TestStepKeepsNoErrors(t *testing.T) {
	t.Parallel()
	lease := newFakeLease(nil, inbox.Delivery{})
	ctx := inbox.WithLease(t.Context(), lease)
	mine := errors.New("mine")
	got, err := inbox.Step(ctx, "charge", func(context.Context) (charge, error) { return charge{ID: "ch_1"}, mine })
	require.ErrorIs(t, err, mine)
	require.Empty(t, got)
	_, err = inbox.Step(ctx, "charge", func(context.Context) (float64, error) { return math.NaN(), nil })
	require.ErrorContains(t, err, "NaN", "what is no JSON")
	require.Empty(t, lease.steps)
}

func TestStepBytes(t *testing.T) {
	t.Parallel()
	lease := newFakeLease(nil, inbox.Delivery{})
	ctx := inbox.WithLease(t.Context(), lease)
	for range 2 {
		got, err := inbox.StepBytes(ctx, "charge", func(inside context.Context) ([]byte, error) {
			_, leased := inbox.LeaseFromContext(inside)
			require.True(t, leased)
			return []byte{0, 0xff}, nil
		})
		require.NoError(t, err)
		require.Equal(t, []byte{0, 0xff}, got, "as it is")
	}
}

func TestStepOutsideTheQueue(t *testing.T) {
	t.Parallel()
	run := func(ctx context.Context) {
		ran := false
		_, err := inbox.Step(ctx, "charge", func(context.Context) (int, error) { ran = true; return 1, nil })
		require.ErrorIs(t, err, inbox.ErrNotLeased)
		require.True(t, inbox.IsTransient(err))
		require.ErrorContains(t, err, `"charge"`)
		_, err = inbox.StepBytes(ctx, "charge", func(context.Context) ([]byte, error) { ran = true; return nil, nil })
		require.ErrorIs(t, err, inbox.ErrNotLeased)
		require.False(t, ran)
	}
	run(t.Context())
	_, err := mustNew(t, newFakeStore(), inbox.Config{}).As("charge")(func(msg *message.Message) ([]*message.Message, error) {
		run(msg.Context())
		return nil, nil
	})(message.NewMessage("42", nil))
	require.NoError(t, err)
}

var uuidForm = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)

// The provider may have been shown the key by an older version of the library: these values never change.
func TestIdempotencyKeysAreStable(t *testing.T) {
	t.Parallel()
	leased := func(key inbox.Key) context.Context {
		return inbox.WithLease(t.Context(), newFakeLease(nil, inbox.Delivery{Key: key}))
	}
	operation := func(ctx context.Context, scope, id string) context.Context {
		return inbox.WithOperation(ctx, inbox.Operation{Scope: scope, ID: id})
	}
	message := inbox.Key{Consumer: "billing/charge", ID: "order-42"}
	seen := map[string]string{}
	for name, tt := range map[string]struct {
		ctx   context.Context
		label string
		want  string
	}{
		"message":         {leased(message), "charge", "75fda1d0-1327-8e9b-a50d-a67863271622"},
		"another label":   {leased(message), "refund", "ae14c26c-48d4-87f3-a1df-f57f0564c80d"},
		"no label":        {leased(message), "", "a4832266-92e9-8d77-b8da-3ea1840870a4"},
		"another message": {leased(inbox.Key{Consumer: "billing/charge", ID: "order-43"}), "charge", "f8232f57-0ebd-8fa8-9f91-b7a73d3d6fb2"},
		"a source":        {leased(inbox.Key{Consumer: "billing/charge", Source: "shop", ID: "order-42"}), "charge", "26542f43-5547-8acb-9513-fa52c3b155b3"},
		"moved border":    {leased(inbox.Key{Consumer: "billing/charg", Source: "e", ID: "order-42"}), "charge", "c5d7ed95-9b99-84b2-96a6-2a0b485647e2"},
		"operation":       {operation(leased(message), "billing", "pay-1"), "charge", "83825fb8-b579-8957-96df-2b6064bc6577"},
	} {
		got, err := inbox.IdempotencyKey(tt.ctx, tt.label)
		require.NoError(t, err)
		require.Equal(t, tt.want, got, name)
		require.Regexp(t, uuidForm, got)
		require.Empty(t, seen[got], "%s has the key of %s", name, seen[got])
		seen[got] = name
	}
	// Two messages of one operation show the provider one key.
	first, err := inbox.IdempotencyKey(operation(leased(message), "billing", "pay-1"), "charge")
	require.NoError(t, err)
	second, err := inbox.IdempotencyKey(operation(leased(inbox.Key{Consumer: "billing/charge", ID: "again"}), "billing", "pay-1"), "charge")
	require.NoError(t, err)
	require.Equal(t, first, second)
}

func TestIdempotencyKeyInAHandler(t *testing.T) {
	t.Parallel()
	in := mustNew(t, newFakeStore(), inbox.Config{})
	want, err := inbox.IdempotencyKey(inbox.WithLease(t.Context(), newFakeLease(nil, inbox.Delivery{Key: inbox.Key{Consumer: "charge", ID: "42"}})), "x")
	require.NoError(t, err)
	_, err = in.As("charge")(func(msg *message.Message) ([]*message.Message, error) {
		got, err := inbox.IdempotencyKey(msg.Context(), "x")
		require.NoError(t, err)
		require.Equal(t, want, got, "inline as from the queue")
		return nil, nil
	})(message.NewMessage("42", nil))
	require.NoError(t, err)

	got, err := inbox.IdempotencyKey(t.Context(), "x")
	require.ErrorIs(t, err, inbox.ErrNotLeased)
	require.ErrorContains(t, err, `"x"`)
	require.Empty(t, got)
}
