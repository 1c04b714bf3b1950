package inbox_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/businesskey"
)

// operate does an operation that gives a receipt; package businesskey is the comfortable way.
func operate(store inbox.OperationStore, op inbox.Operation) (inbox.OperationResult, error) {
	return store.Operate(context.Background(), op, func(context.Context) (inbox.OperationResult, error) {
		return inbox.OperationResult{Value: []byte("receipt of " + op.ID)}, nil
	})
}

// The second time the work is not done, and its result is the recorded one.
func ExampleOperationStore() {
	db, store := openStore()
	defer db.Close()
	for range 2 {
		result, err := operate(store, inbox.Operation{Scope: "transfers", ID: "42"})
		check(err)
		fmt.Printf("%s, repeated: %t\n", result.Value, result.Repeated)
	}
	// Output:
	// receipt of 42, repeated: false
	// receipt of 42, repeated: true
}

// An operation needs an id and a scope.
func ExampleOperation() {
	for _, op := range []inbox.Operation{{Scope: "transfers", ID: "42"}, {Scope: "transfers"}, {ID: "42"}} {
		err := op.Validate()
		fmt.Println(op, errors.Is(err, inbox.ErrNoOperationID), errors.Is(err, inbox.ErrNoScope))
	}
	// Output:
	// transfers/42 false false
	// transfers/ true false
	// /42 false true
}

// What an operation produced is recorded as its value is.
func ExampleOperationResult() {
	db, store := openStore()
	defer db.Close()
	for range 2 {
		result, err := store.Operate(context.Background(), inbox.Operation{Scope: "transfers", ID: "42"},
			func(context.Context) (inbox.OperationResult, error) {
				return inbox.OperationResult{Messages: []*message.Message{message.NewMessage("receipt-42", nil)}}, nil
			})
		check(err)
		fmt.Println(result.Messages[0].UUID, "repeated:", result.Repeated)
	}
	// Output:
	// receipt-42 repeated: false
	// receipt-42 repeated: true
}

// Every error of an operation names it.
func ExampleOperationError() {
	db, store := openStore()
	defer db.Close()
	_, err := operate(store, inbox.Operation{Scope: "transfers", ID: "42"})
	check(err)
	_, err = operate(store, inbox.Operation{Scope: "transfers", ID: "42", Fingerprint: inbox.Fingerprint{1}})

	var e *inbox.OperationError
	if errors.As(err, &e) {
		fmt.Println(e.Scope, e.ID, errors.Is(err, inbox.ErrMismatch))
	}
	// Output: transfers 42 true
}

// With Claims the operation is claimed together with its message: keys.Claims proposes it, keys.Middleware takes it up.
// Where an inbox serves handlers that have no operations, Claims must be false for their messages.
func ExampleClaims() {
	db, store := openStore()
	defer db.Close()
	keys, err := businesskey.New(store, businesskey.Config{})
	check(err)
	var claims inbox.Claims = func(msg *message.Message, key inbox.Key) (inbox.Operation, bool) {
		if key.Consumer != "transfer" {
			return inbox.Operation{}, false
		}
		return keys.Claims(msg, key)
	}
	in, err := inbox.New(store, inbox.Config{Claims: claims})
	check(err)
	handle := func(msg *message.Message) ([]*message.Message, error) {
		fmt.Println("handled", msg.UUID)
		return nil, nil
	}
	transfer, notify := in.As("transfer")(keys.Middleware(handle)), in.As("notify")(handle)

	for _, uuid := range []string{"message-1", "message-2"} {
		for _, handler := range []message.HandlerFunc{transfer, notify} {
			msg := message.NewMessage(uuid, nil)
			msg.Metadata.Set(businesskey.OperationIDMetadataKey, "transfer-42")
			_, err := handler(msg)
			check(err)
		}
	}
	// Output:
	// handled message-1
	// handled message-1
	// handled message-2
}

// The layer tells which memory knew a duplicate: that of messages or that of operations.
func ExampleLayer() {
	db, store := openStore()
	defer db.Close()
	keys, err := businesskey.New(store, businesskey.Config{})
	check(err)
	in, err := inbox.New(store, inbox.Config{
		Observer: func(_ context.Context, e inbox.Event) { fmt.Println(e.Outcome, e.Layer == inbox.LayerOperation) },
	})
	check(err)
	handler := in.As("transfer")(keys.Middleware(func(*message.Message) ([]*message.Message, error) { return nil, nil }))
	for _, uuid := range []string{"message-1", "message-1", "message-2"} {
		msg := message.NewMessage(uuid, nil)
		msg.Metadata.Set(businesskey.OperationIDMetadataKey, "transfer-42")
		_, err := handler(msg)
		check(err)
	}
	// Output:
	// processed false
	// duplicate false
	// duplicate true
}

// A handler that needs to know which message it has in hand.
func ExampleKeyFromContext() {
	db, store := openStore()
	defer db.Close()
	in, err := inbox.New(store, inbox.Config{Namespace: "billing"})
	check(err)
	_, err = in.As("charge")(func(msg *message.Message) ([]*message.Message, error) {
		key, ok := inbox.KeyFromContext(msg.Context())
		fmt.Println(key, ok)
		return nil, nil
	})(message.NewMessage("42", nil))
	check(err)
	// Output: billing/charge/42 true
}
