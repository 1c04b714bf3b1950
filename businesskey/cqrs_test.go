package businesskey_test

import (
	"errors"
	"testing"

	"github.com/ThreeDotsLabs/watermill/components/cqrs"
	"github.com/stretchr/testify/require"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/businesskey"
)

type number int

func (n number) String() string { return [...]string{"zero", "one"}[n] }

type text string

type (
	tagged struct {
		Amount    int
		RequestID string `json:"request_id" inbox:"operation_id"`
	}
	stringer struct {
		ID number `inbox:"operation_id"`
	}
	named struct {
		ID text `inbox:"operation_id"`
	}
	unexported struct {
		id string `inbox:"operation_id"`
	}
	wrongType struct {
		ID int `inbox:"operation_id"`
	}
	untagged struct{ ID string }
)

func TestByTag(t *testing.T) {
	t.Parallel()
	pointer := &tagged{RequestID: "pay-1"}
	for _, command := range []any{tagged{RequestID: "pay-1"}, pointer, &pointer, named{"pay-1"}} {
		id, err := businesskey.ByTag(command)
		require.NoError(t, err)
		require.Equal(t, "pay-1", id)
	}
	id, err := businesskey.ByTag(stringer{1})
	require.NoError(t, err)
	require.Equal(t, "one", id)
	for name, command := range map[string]any{
		"empty": tagged{}, "empty stringer": stringer{}, "not exported": unexported{"1"}, "another type": wrongType{1},
		"no tag": untagged{"1"}, "no struct": "pay-1", "nil": nil, "nil pointer": (*tagged)(nil),
	} {
		_, err := businesskey.ByTag(command)
		require.ErrorIs(t, err, inbox.ErrNoOperationID, name)
		require.True(t, inbox.IsPermanent(err))
	}
}

func TestDecorate(t *testing.T) {
	t.Parallel()
	marshaler := func(operationID func(any) (string, error)) cqrs.CommandEventMarshaler {
		return cqrs.CommandEventMarshalerDecorator{CommandEventMarshaler: cqrs.JSONMarshaler{}, DecorateFunc: businesskey.Decorate(operationID)}
	}
	var uuids []string
	for range 2 {
		msg, err := marshaler(nil).Marshal(tagged{10, "pay-1"})
		require.NoError(t, err)
		require.Equal(t, "pay-1", msg.Metadata.Get(businesskey.OperationIDMetadataKey))
		require.Contains(t, string(msg.Payload), "pay-1")
		uuids = append(uuids, msg.UUID)

		keys := newKeys(t, newMemory(), businesskey.Config{})
		op, ok := keys.Claims(msg, inbox.Key{Consumer: "charge", ID: msg.UUID})
		require.True(t, ok)
		require.Equal(t, "pay-1", op.ID)
	}
	require.NotEqual(t, uuids[0], uuids[1], "two messages")

	_, err := marshaler(nil).Marshal(untagged{})
	require.ErrorIs(t, err, inbox.ErrNoOperationID, "the sender is told")
	msg, err := marshaler(func(command any) (string, error) { return command.(untagged).ID, nil }).Marshal(untagged{"pay-2"})
	require.NoError(t, err)
	require.Equal(t, "pay-2", msg.Metadata.Get(businesskey.OperationIDMetadataKey))
	msg, err = marshaler(func(any) (string, error) { return "", nil }).Marshal(untagged{})
	require.NoError(t, err)
	require.NotContains(t, msg.Metadata, businesskey.OperationIDMetadataKey)
	mine := errors.New("mine")
	_, err = marshaler(func(any) (string, error) { return "", mine }).Marshal(untagged{})
	require.ErrorIs(t, err, mine)
}
