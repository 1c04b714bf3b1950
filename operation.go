package inbox

import (
	"context"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Operation is a business operation, named by its producer: the same operation has one effect, also when it comes again
// in another message. Package businesskey makes them.
type Operation struct {
	// Scope is whose operation ids they are: a consumer, or a name that several consumers share on purpose.
	Scope string
	// ID is the operation id, any bytes, up to MaxIDLength.
	ID string
	// Fingerprint tells the operation from another one under a used id.
	Fingerprint Fingerprint
	// Whole says that it is all that its message asks for: when it is done already, the message counts as a duplicate.
	Whole bool
	// Invalid is what is wrong with it, found before it could be named; it is the error of Operate then.
	Invalid error
}

// Validate gives the typed error of an operation that cannot be claimed.
func (o Operation) Validate() error {
	switch {
	case o.Invalid != nil:
		return o.Invalid
	case o.ID == "":
		return ErrNoOperationID
	case o.Scope == "":
		return ErrNoScope
	}
	for _, part := range [...]struct{ name, value string }{{"id", o.ID}, {"scope", o.Scope}} {
		if len(part.value) > MaxIDLength {
			return fmt.Errorf("%w: the %s has %d bytes, at most %d are allowed", ErrOperationIDTooLong, part.name, len(part.value), MaxIDLength)
		}
	}
	return nil
}

// String gives scope/id for logs and errors, as [Key.String] does.
func (o Operation) String() string { return Key{Consumer: o.Scope, ID: o.ID}.String() }

// Storage derives the primary key of the operation in its memory, as [Key.Storage] does for messages.
func (o Operation) Storage() StorageKey { return Key{Consumer: o.Scope, ID: o.ID}.Storage() }

// OperationResult is what an operation gave, now or when it was done.
type OperationResult struct {
	// Value is the recorded result.
	Value []byte
	// Messages are those that the operation produced. They are not recorded, and not given back, where they go out
	// through an outbox.
	Messages []*message.Message
	// Repeated is set when the operation was done before, and its work not run now.
	Repeated bool
}

// OperationFunc is the work of an operation; it runs inside the transaction that ctx carries.
type OperationFunc = func(ctx context.Context) (OperationResult, error)

// OperationStore is a [Store] that remembers business operations beside its messages.
type OperationStore interface {
	Store
	// Operate commits fn at most once per scope and id of op.
	//
	// With a context from inside a delivery of this store, op is claimed in the delivery's transaction and committed with
	// it; any error then makes the whole delivery roll back, whatever the handler returns, and an operation that is in
	// flight elsewhere makes it start again later. With any other context the operation has a transaction of its own. For
	// an operation that is done fn is not called, and the recorded result comes back. Every error is an
	// [*OperationError].
	Operate(ctx context.Context, op Operation, fn OperationFunc) (OperationResult, error)
}

// Claims proposes the operation of a message, to be claimed together with the message itself; false is none.
type Claims func(msg *message.Message, key Key) (Operation, bool)

// OperationError tells what happened to which operation; errors.Is and errors.As reach the cause.
type OperationError struct {
	Scope, ID string
	Err       error
}

// Error gives "operation scope/id: cause".
func (e *OperationError) Error() string {
	return fmt.Sprintf("operation %s: %v", Operation{Scope: e.Scope, ID: e.ID}, e.Err)
}

// Unwrap gives the cause.
func (e *OperationError) Unwrap() error { return e.Err }

// KeyFromContext gives the key of the message whose handler runs with ctx behind an inbox.
func KeyFromContext(ctx context.Context) (Key, bool) {
	if o := openFrom(ctx); o != nil {
		return o.key, true
	}
	return Key{}, false
}

type operationKey struct{}

// WithOperation puts the operation whose work runs with ctx into it. Stores call it.
func WithOperation(ctx context.Context, op Operation) context.Context {
	return context.WithValue(ctx, operationKey{}, op)
}

// OperationFromContext gives the operation whose work runs with ctx.
func OperationFromContext(ctx context.Context) (Operation, bool) {
	op, ok := ctx.Value(operationKey{}).(Operation)
	return op, ok
}
