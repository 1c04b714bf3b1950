package businesskey

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"reflect"
	"sync/atomic"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	inbox "github.com/watermill-contrib/watermill-inbox"
)

// Keys handles business operations once. It is safe for concurrent use.
type Keys struct {
	store         inbox.OperationStore
	config        Config
	passedThrough atomic.Uint64
}

// New gives Keys over store, which must be the inbox's own: the operation is committed in the message's transaction. It
// returns an [*inbox.ConfigError] for a nil store or a bad value.
func New(store inbox.OperationStore, config Config) (*Keys, error) {
	if v := reflect.ValueOf(store); !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil() {
		return nil, &inbox.ConfigError{Field: "store", Value: nil, Reason: "must not be nil: make one with sqlinbox.NewStore or pgxinbox.NewStore and check its error"}
	}
	if err := config.Validate(); err != nil {
		return nil, err
	}
	config.setDefaults()
	return &Keys{store: store, config: config}, nil
}

// Middleware handles each operation once. It belongs on a handler, inside the inbox's middleware; see the package
// documentation.
//
// A message whose operation was done before does not reach the handler; what the handler had returned is returned again,
// with the same UUIDs, unless it went out through an outbox. Where another handler of the scope returned it and this one
// has no publish topic, the error is inbox.ErrNoPublishTopic.
func (k *Keys) Middleware(next message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		ctx := msg.Context()
		op, ok := k.operation(msg, consumer(ctx))
		if !ok {
			k.passedThrough.Add(1)
			return next(msg)
		}
		defer msg.SetContext(ctx)
		result, err := k.store.Operate(ctx, op, work(msg, next))
		if err != nil {
			return nil, err
		}
		if result.Repeated {
			k.config.Logger.Debug("Operation was done before, the handler is not called", watermill.LogFields{
				"scope": op.Scope, "operation_id": op.ID, "message_uuid": msg.UUID,
			})
			if err := publishable(ctx, result.Messages); err != nil {
				return nil, &inbox.OperationError{Scope: op.Scope, ID: op.ID, Err: err}
			}
		}
		return result.Messages, nil
	}
}

// publishable tells that the recorded messages of an operation, which another handler of its scope returned, came to a
// router's handler that cannot publish them.
func publishable(ctx context.Context, messages []*message.Message) error {
	handler := message.HandlerNameFromCtx(ctx)
	if len(messages) == 0 || handler == "" || message.PublishTopicFromCtx(ctx) != "" {
		return nil
	}
	return fmt.Errorf("%w: the operation was done in another handler of its scope and produced %d messages; handler %q, where it was repeated, cannot publish them",
		inbox.ErrNoPublishTopic, len(messages), handler)
}

// work is the handler as the work of an operation. It may be called again, in another transaction; what the first call
// changed in the message is undone.
func work(msg *message.Message, next message.HandlerFunc) inbox.OperationFunc {
	uuid, payload, metadata := msg.UUID, bytes.Clone(msg.Payload), maps.Clone(msg.Metadata)
	again := false
	return func(ctx context.Context) (inbox.OperationResult, error) {
		if again {
			msg.UUID, msg.Payload, msg.Metadata = uuid, bytes.Clone(payload), maps.Clone(metadata)
		}
		again = true
		msg.SetContext(ctx)
		produced, err := next(msg)
		for _, m := range produced {
			if m.UUID == "" { // recorded with the operation, and to be the same each time
				m.UUID = inbox.NewUUID()
			}
		}
		return inbox.OperationResult{Messages: produced}, err
	}
}

// PassedThrough is how many messages had no operation id and were handled without one ([PassThrough]).
func (k *Keys) PassedThrough() uint64 { return k.passedThrough.Load() }

// Claims is for inbox.Config.Claims: the operation is then claimed together with its message, which saves a round trip on
// pgx. Every handler behind that inbox should have the middleware.
//
// Such a claim stands before any savepoint: what rolls back to a savepoint around the middleware undoes the work, and not
// the claim. Return an error instead, which undoes both.
func (k *Keys) Claims(msg *message.Message, key inbox.Key) (inbox.Operation, bool) {
	op, ok := k.operation(msg, key.Consumer)
	return op, ok && op.Validate() == nil // what is wrong with it is for the middleware to say
}

// consumer is the default scope of a message: its consumer in the inbox around it.
func consumer(ctx context.Context) string {
	if key, ok := inbox.KeyFromContext(ctx); ok {
		return key.Consumer
	}
	return message.HandlerNameFromCtx(ctx)
}

// operation finds out which operation the message asks for; false is none, where that is allowed.
func (k *Keys) operation(msg *message.Message, consumer string) (inbox.Operation, bool) {
	op := inbox.Operation{Scope: consumer, Whole: true}
	if k.config.Scope != nil {
		op.Scope = k.config.Scope(msg)
	}
	id, err := k.config.OperationID(msg)
	switch {
	case err != nil && !inbox.IsPermanent(err):
		op.Invalid = fmt.Errorf("%w: %w", inbox.ErrOperationIDRefused, err)
	case err != nil:
		op.Invalid = err
	case id == "" && k.config.Missing == PassThrough:
		return op, false
	}
	op.ID = id
	op.Fingerprint = fingerprint(k.config.Fingerprint(msg))
	return op, true
}

func fingerprint(content []byte) (f inbox.Fingerprint) {
	sum := sha256.Sum256(content)
	copy(f[:], sum[:])
	return f
}
