package businesskey_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/businesskey"
)

// memory is an inbox.OperationStore without a database.
type memory struct {
	asked []inbox.Operation
	done  map[inbox.StorageKey]inbox.OperationResult
	again bool // runs the work once more, as after a serialization failure
}

type inTx struct{}

func newMemory() *memory { return &memory{done: map[inbox.StorageKey]inbox.OperationResult{}} }

func (m *memory) Process(ctx context.Context, _ inbox.Delivery, fn inbox.Func) (inbox.Result, error) {
	messages, err := fn(ctx)
	return inbox.Result{Outcome: inbox.OutcomeProcessed, Messages: messages}, err
}

func (m *memory) Operate(ctx context.Context, op inbox.Operation, fn inbox.OperationFunc) (inbox.OperationResult, error) {
	m.asked = append(m.asked, op)
	if err := op.Validate(); err != nil {
		return inbox.OperationResult{}, &inbox.OperationError{Scope: op.Scope, ID: op.ID, Err: err}
	}
	if result, ok := m.done[op.Storage()]; ok {
		result.Repeated = true
		return result, nil
	}
	if m.again {
		_, _ = fn(context.WithValue(ctx, inTx{}, true))
	}
	result, err := fn(context.WithValue(ctx, inTx{}, true))
	if err != nil {
		return inbox.OperationResult{}, &inbox.OperationError{Scope: op.Scope, ID: op.ID, Err: err}
	}
	m.done[op.Storage()] = result
	return result, nil
}

func newKeys(t *testing.T, store inbox.OperationStore, config businesskey.Config) *businesskey.Keys {
	t.Helper()
	keys, err := businesskey.New(store, config)
	require.NoError(t, err)
	return keys
}

func command(id, payload string) *message.Message {
	msg := message.NewMessage(watermill.NewUUID(), message.Payload(payload))
	if id != "" {
		msg.Metadata.Set(businesskey.OperationIDMetadataKey, id)
	}
	return msg
}

func TestNewNamesWhatIsWrong(t *testing.T) {
	t.Parallel()
	for field, open := range map[string]func() (*businesskey.Keys, error){
		"store": func() (*businesskey.Keys, error) { return businesskey.New(nil, businesskey.Config{}) },
		"businesskey.Config.Missing": func() (*businesskey.Keys, error) {
			return businesskey.New(newMemory(), businesskey.Config{Missing: "ignore"})
		},
		"businesskey.Config.MaxResult": func() (*businesskey.Keys, error) {
			return businesskey.New(newMemory(), businesskey.Config{MaxResult: -1})
		},
	} {
		keys, err := open()
		require.Nil(t, keys)
		var bad *inbox.ConfigError
		require.ErrorAs(t, err, &bad)
		require.Equal(t, field, bad.Field)
	}
	var none *memory
	_, err := businesskey.New(none, businesskey.Config{})
	require.ErrorContains(t, err, "must not be nil")
	require.NoError(t, businesskey.Config{}.Validate())
}

func TestClaims(t *testing.T) {
	t.Parallel()
	key := inbox.Key{Consumer: "billing/charge", ID: "1"}
	keys := newKeys(t, newMemory(), businesskey.Config{})
	op, ok := keys.Claims(command("pay-1", "pay 10"), key)
	require.True(t, ok)
	require.Equal(t, "billing/charge", op.Scope)
	require.Equal(t, "pay-1", op.ID)
	require.True(t, op.Whole)
	other, _ := keys.Claims(command("pay-1", "pay 20"), key)
	require.NotEqual(t, op.Fingerprint, other.Fingerprint)
	require.Equal(t, op.Storage(), other.Storage())

	for name, msg := range map[string]*message.Message{"no id": command("", ""), "long id": command(strings.Repeat("k", inbox.MaxIDLength+1), "")} {
		_, ok := keys.Claims(msg, key)
		require.False(t, ok, "%s: it is for the middleware to say", name)
	}
	_, ok = keys.Claims(command("pay-1", ""), inbox.Key{})
	require.False(t, ok, "no scope")
	lenient := newKeys(t, newMemory(), businesskey.Config{Missing: businesskey.PassThrough})
	_, ok = lenient.Claims(command("", ""), key)
	require.False(t, ok)
	require.Zero(t, lenient.PassedThrough(), "counted by the middleware")
	failing := newKeys(t, newMemory(), businesskey.Config{OperationID: func(*message.Message) (string, error) { return "1", errors.New("unreadable") }})
	_, ok = failing.Claims(command("pay-1", ""), key)
	require.False(t, ok)
}

func TestTheMiddlewareAsksForWhatClaimsProposes(t *testing.T) {
	t.Parallel()
	store := newMemory()
	keys := newKeys(t, store, businesskey.Config{})
	var proposed inbox.Operation
	in, err := inbox.New(store, inbox.Config{
		Consumer: func(*message.Message) string { return "charge" },
		Claims: func(msg *message.Message, key inbox.Key) (op inbox.Operation, ok bool) {
			proposed, ok = keys.Claims(msg, key)
			return proposed, ok
		},
	})
	require.NoError(t, err)
	_, err = in.Middleware(keys.Middleware(message.PassthroughHandler))(command("pay-1", "pay 10"))
	require.NoError(t, err)
	require.Equal(t, []inbox.Operation{proposed}, store.asked)
}

func TestMiddleware(t *testing.T) {
	t.Parallel()
	type mark struct{}
	store := newMemory()
	keys := newKeys(t, store, businesskey.Config{Scope: func(*message.Message) string { return "cards" }})
	calls := 0
	handle := keys.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		calls++
		require.NotNil(t, msg.Context().Value(inTx{}), "the operation's context")
		return []*message.Message{message.NewMessage("", nil), message.NewMessage("own", nil)}, nil
	})
	msg := command("pay-1", "pay 10")
	ctx := context.WithValue(t.Context(), mark{}, true)
	msg.SetContext(ctx)
	first, err := handle(msg)
	require.NoError(t, err)
	require.NotEmpty(t, first[0].UUID, "to be the same each time")
	require.Equal(t, "own", first[1].UUID)
	require.Equal(t, ctx, msg.Context())
	again, err := handle(command("pay-1", "pay 10"))
	require.NoError(t, err)
	require.Equal(t, first, again)
	require.Equal(t, 1, calls)
	require.Equal(t, "cards", store.asked[0].Scope)

	_, err = handle(command("", "pay 10"))
	require.ErrorIs(t, err, inbox.ErrNoOperationID)
	lenient := newKeys(t, store, businesskey.Config{Missing: businesskey.PassThrough})
	_, err = lenient.Middleware(message.PassthroughHandler)(command("", "pay 10"))
	require.NoError(t, err)
	require.EqualValues(t, 1, lenient.PassedThrough())
	asked := len(store.asked)
	require.Equal(t, 3, asked, "the store was not asked")
}

func TestMiddlewareKeepsAnErrorThatIsPermanent(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ given, want error }{
		{errors.New("unreadable"), inbox.ErrOperationIDRefused},
		{inbox.ErrNoOperationID, inbox.ErrNoOperationID},
	} {
		keys := newKeys(t, newMemory(), businesskey.Config{
			Scope:       func(*message.Message) string { return "cards" },
			OperationID: func(*message.Message) (string, error) { return "", c.given },
		})
		_, err := keys.Middleware(message.PassthroughHandler)(command("", ""))
		require.ErrorIs(t, err, c.want)
		require.ErrorIs(t, err, c.given)
		require.True(t, inbox.IsPermanent(err))
	}
}

// Without an inbox nobody else undoes what a first call changed in the message.
func TestMiddlewareRestoresTheMessageForAnotherCall(t *testing.T) {
	t.Parallel()
	store := newMemory()
	store.again = true
	keys := newKeys(t, store, businesskey.Config{Scope: func(*message.Message) string { return "cards" }})
	msg := command("pay-1", "pay 10")
	uuid := msg.UUID
	calls := 0
	_, err := keys.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		calls++
		require.Equal(t, uuid, msg.UUID)
		require.Equal(t, "pay 10", string(msg.Payload))
		require.Equal(t, message.Metadata{businesskey.OperationIDMetadataKey: "pay-1"}, msg.Metadata)
		copy(msg.Payload, "xxx")
		msg.UUID = "spoilt"
		msg.Metadata.Set("hop", "2")
		return nil, nil
	})(msg)
	require.NoError(t, err)
	require.Equal(t, 2, calls)
}

func TestDo(t *testing.T) {
	t.Parallel()
	store := newMemory()
	keys := newKeys(t, store, businesskey.Config{MaxResult: 3})
	gives := func(value string) func(context.Context) ([]byte, error) {
		return func(context.Context) ([]byte, error) { return []byte(value), nil }
	}
	for _, value := range []string{"one", "two"} {
		got, err := keys.Do(t.Context(), businesskey.Operation{Scope: "http", ID: "1", Content: []byte("10")}, gives(value))
		require.NoError(t, err)
		require.Equal(t, "one", string(got))
	}
	require.False(t, store.asked[0].Whole, "the message may ask for more")
	_, err := keys.Do(t.Context(), businesskey.Operation{Scope: "http", ID: "2"}, gives("four"))
	require.ErrorIs(t, err, inbox.ErrResultTooLarge)
	require.ErrorContains(t, err, "MaxResult")
	_, err = keys.Do(t.Context(), businesskey.Operation{ID: "3"}, gives(""))
	require.ErrorIs(t, err, inbox.ErrNoScope)
}

func TestDoAllClaimsInTheOrderOfKeys(t *testing.T) {
	t.Parallel()
	var orders [2][]inbox.Operation
	for i, ids := range [][]string{{"a", "b", "c", "d"}, {"d", "b", "a", "c"}} {
		store := newMemory()
		keys := newKeys(t, store, businesskey.Config{})
		operations := make([]businesskey.Operation, len(ids))
		for j, id := range ids {
			operations[j] = businesskey.Operation{Scope: "http", ID: id}
		}
		got, err := keys.DoAll(t.Context(), operations, func(_ context.Context, op businesskey.Operation) ([]byte, error) { return []byte(op.ID), nil })
		require.NoError(t, err)
		for j, id := range ids {
			require.Equal(t, id, string(got[j]), "the results are in the order of the call")
		}
		orders[i] = store.asked
	}
	require.Equal(t, orders[0], orders[1])
}
