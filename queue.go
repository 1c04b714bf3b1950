package inbox

import (
	"context"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Entry is a message that is to be stored now and handled later.
type Entry struct {
	// Delivery names the message and the consumer that is to handle it.
	Delivery Delivery
	// Message is stored as it is: UUID, metadata and payload.
	Message *message.Message
	// OrderKey: entries of one consumer with equal keys are handled in the order in which they were stored. Empty is none.
	OrderKey string
}

// QueueStore is a [Store] that can keep messages for later, in a queue beside its memory.
type QueueStore interface {
	Store
	// Enqueue stores the entries in one transaction, that of ctx where it carries one of this store. Each entry gets its
	// own answer: OutcomeStored, or for a message that is known OutcomeQueued or OutcomeDuplicate, or an [*Error]. An
	// entry with an error is not stored; the others are.
	Enqueue(ctx context.Context, entries []Entry) []Stored
}

// Stored is what became of one [Entry].
type Stored struct {
	Outcome  Outcome
	Mismatch bool // other content under a used id, accepted by Delivery.AcceptMismatch
	Err      error
}

// Lease is a message that was taken from a queue, for a limited and renewed time. The queue's subscriber puts it into the
// message's context; the middleware handles the message with it instead of its own store.
type Lease interface {
	// Store's Process runs fn without a transaction until fn asks for one (TxFromContext), and commits the end of the
	// message's waiting together with fn's work.
	Store
	// Of tells whether the message waits in the queue of this store.
	Of(store Store) bool
	// Step runs fn unless an earlier attempt of the message has; see the function [Step].
	Step(ctx context.Context, name string, fn func(ctx context.Context) ([]byte, error)) ([]byte, error)
	// Message is the one that was leased. A context that carries the lease may outlive it, in another message: such a
	// message is not leased.
	Message() *message.Message
	// Delivery is the message as it was identified at its intake. It is never identified again.
	Delivery() Delivery
}

// TopicMetadataKey is the metadata field in which a message from the queue carries the broker's topic that it came from.
const TopicMetadataKey = "watermill_inbox_topic"

type leaseKey struct{}

// WithLease puts a lease into the context of a message. Queues call it.
func WithLease(ctx context.Context, l Lease) context.Context {
	return context.WithValue(ctx, leaseKey{}, l)
}

// LeaseFromContext gives the lease of a message that came out of a queue, which ctx may have outlived.
func LeaseFromContext(ctx context.Context) (Lease, bool) {
	l, ok := ctx.Value(leaseKey{}).(Lease)
	return l, ok
}

// leaseOf gives the lease of this very message.
func leaseOf(msg *message.Message) (Lease, bool) {
	l, ok := LeaseFromContext(msg.Context())
	return l, ok && l.Message() == msg
}

// Unleased lets messages that came out of a queue pass by a middleware: their row owns retries and the end of them, so
// Retry and PoisonQueue are for the others.
func Unleased(mw message.HandlerMiddleware) message.HandlerMiddleware {
	return func(next message.HandlerFunc) message.HandlerFunc {
		wrapped := mw(next)
		return func(msg *message.Message) ([]*message.Message, error) {
			if _, leased := leaseOf(msg); leased {
				return next(msg)
			}
			return wrapped(msg)
		}
	}
}
