package inbox_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/components/cqrs"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	inbox "github.com/watermill-contrib/watermill-inbox"
)

func TestConfigValidate(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		config inbox.Config
		field  string // empty: valid
	}{
		{"zero", inbox.Config{}, ""},
		{"namespace", inbox.Config{Namespace: "billing"}, ""},
		{"longest namespace", inbox.Config{Namespace: strings.Repeat("x", inbox.MaxIDLength/2)}, ""},
		{"namespace with a slash", inbox.Config{Namespace: "billing/eu"}, "Namespace"},
		{"namespace too long", inbox.Config{Namespace: strings.Repeat("x", inbox.MaxIDLength/2+1)}, "Namespace"},
		{"reject", inbox.Config{Mismatch: inbox.MismatchReject}, ""},
		{"report", inbox.Config{Mismatch: inbox.MismatchReport}, ""},
		{"another policy", inbox.Config{Mismatch: "ignore"}, "Mismatch"},
		{"policy in another case", inbox.Config{Mismatch: "Reject"}, "Mismatch"},
		{"grace", inbox.Config{Grace: time.Second}, ""},
		{"negative grace", inbox.Config{Grace: -1}, "Grace"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			err := tt.config.Validate()
			in, newErr := inbox.New(newFakeStore(), tt.config)
			require.Equal(t, err, newErr, "New checks as Validate does")
			if tt.field == "" {
				require.NoError(t, err)
				require.NotNil(t, in)
				return
			}
			require.Nil(t, in)
			var bad *inbox.ConfigError
			require.ErrorAs(t, err, &bad)
			require.Equal(t, "inbox.Config."+tt.field, bad.Field)
			require.NotNil(t, bad.Value)
			require.ErrorContains(t, err, bad.Field)
			require.ErrorContains(t, err, bad.Reason)
		})
	}
}

func TestNewLeavesTheCallersConfigAlone(t *testing.T) {
	t.Parallel()
	config := inbox.Config{Namespace: "billing"}
	_ = mustNew(t, newFakeStore(), config)
	require.Equal(t, inbox.Config{Namespace: "billing"}, config)
}

// A forgotten error check leaves a nil store: it is found at construction, not as a panic at the first message.
func TestNewRefusesANilStore(t *testing.T) {
	t.Parallel()
	var interfaceToo inbox.Store = (*fakeStore)(nil)
	for name, store := range map[string]inbox.Store{
		"nil":               nil,
		"nil pointer":       (*fakeStore)(nil),
		"nil in a variable": interfaceToo,
		"nil func":          storeFunc(nil),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			in, err := inbox.New(store, inbox.Config{})
			require.Nil(t, in)
			var bad *inbox.ConfigError
			require.ErrorAs(t, err, &bad)
			require.Equal(t, "store", bad.Field)
			require.ErrorContains(t, err, "check its error")
		})
	}
}

func TestNewTakesEveryOtherStore(t *testing.T) {
	t.Parallel()
	for _, store := range []inbox.Store{
		newFakeStore(),
		storeFunc(newFakeStore().Process),
		storeStruct{},
	} {
		_, err := inbox.New(store, inbox.Config{})
		require.NoError(t, err)
	}
}

// Stores of kinds other than a pointer.
type (
	storeFunc   func(context.Context, inbox.Delivery, inbox.Func) (inbox.Result, error)
	storeStruct struct{}
)

func (f storeFunc) Process(ctx context.Context, d inbox.Delivery, fn inbox.Func) (inbox.Result, error) {
	return f(ctx, d, fn)
}

func (storeStruct) Process(context.Context, inbox.Delivery, inbox.Func) (inbox.Result, error) {
	return inbox.Result{Outcome: inbox.OutcomeDuplicate}, nil
}

func TestBypassHandlers(t *testing.T) {
	t.Parallel()
	bypass := inbox.BypassHandlers("events_forwarder", "requeuer")
	for handler, want := range map[string]bool{"events_forwarder": true, "requeuer": true, "charge": false, "Requeuer": false} {
		require.Equal(t, want, bypass(message.NewMessageWithContext(routed(t, handler, "t"), "1", nil)), handler)
	}
	require.False(t, bypass(message.NewMessage("1", nil)), "no router")
	require.False(t, inbox.BypassHandlers()(message.NewMessageWithContext(routed(t, "charge", "t"), "1", nil)))
}

func TestBypassHandlersKeepsItsNames(t *testing.T) {
	t.Parallel()
	names := []string{"requeuer"}
	bypass := inbox.BypassHandlers(names...)
	names[0] = "charge"
	require.True(t, bypass(message.NewMessageWithContext(routed(t, "requeuer", "t"), "1", nil)))
}

func TestBypassUnknown(t *testing.T) {
	t.Parallel()
	type orderPlaced struct{ ID string }
	type orderShipped struct{ ID string }
	marshaler := cqrs.JSONMarshaler{GenerateName: cqrs.StructName}
	bypass := inbox.BypassUnknown(marshaler, marshaler.Name(orderPlaced{}))

	placed, err := marshaler.Marshal(orderPlaced{"1"})
	require.NoError(t, err)
	shipped, err := marshaler.Marshal(orderShipped{"1"})
	require.NoError(t, err)
	require.False(t, bypass(placed))
	require.True(t, bypass(shipped))
	require.True(t, bypass(message.NewMessage("1", nil)), "a message without a name is no event of ours")
	require.True(t, inbox.BypassUnknown(marshaler)(placed), "no names at all")
}
