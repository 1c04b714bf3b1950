package inbox

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Store is the memory of handled messages and the transaction that each one is handled in. The stores of this module
// are sqlinbox.Store (database/sql) and pgxinbox.Store (native pgx).
type Store interface {
	// Process commits the work of fn at most once per d.Key.
	//
	// For a first delivery it begins a transaction, claims d.Key in it, calls fn with a context that carries the
	// transaction, and commits; fn may be called again after a serialization failure, each time in a new transaction.
	// For every other delivery fn is not called and the Result or the error tells why. When fn or the commit fails
	// nothing is remembered, but for a commit whose reply was lost ([ErrCommitUnknown]): then a redelivery finds out.
	// Every error is an [*Error].
	Process(ctx context.Context, d Delivery, fn Func) (Result, error)
}

// Func is the work of one message: it runs inside the transaction that ctx carries and gives the messages to publish.
type Func = func(ctx context.Context) ([]*message.Message, error)

// Fingerprint is 16 bytes of SHA-256 over a message's content. It tells a copy from another message under a used id.
type Fingerprint [16]byte

// Delivery is one arrival of a message, as the middleware hands it to the store.
type Delivery struct {
	// Key names the message.
	Key Key
	// Handler is the name of the router's handler, for errors; it may differ from Key.Consumer.
	Handler string
	// Topic is where the message arrived, kept in the memory for people to read.
	Topic string
	// Fingerprint is compared with the remembered one when the key is not new.
	Fingerprint Fingerprint
	// AcceptMismatch makes another fingerprint a duplicate with Result.Mismatch instead of [ErrMismatch].
	AcceptMismatch bool
	// MessageTime is when the message was made, as far as every copy agrees on it; zero is unknown. It serves
	// retention and the late guard.
	MessageTime time.Time
	// KeyTime is the time in the storage key where the id carries none; zero is none.
	KeyTime time.Time
	// Record keeps what fn returns in the transaction, to be given back with duplicates until Acked.
	Record bool
	// Operation is what Config.Claims proposed, to be claimed with the message where that saves a round trip. Nil is none.
	Operation *Operation
	// Attempt counts the starts of a message from the queue, this one included; 0 is a message from a broker.
	Attempt int
	// HasKeyTime tells that the consumer's keys are made with Config.KeyTime, also when KeyTime is zero.
	HasKeyTime bool
}

// StorageKey is the primary key of this delivery's memory row.
func (d Delivery) StorageKey() StorageKey { return d.Key.StorageAt(d.KeyTime) }

// Result is what became of a delivery that did not fail.
type Result struct {
	// Outcome is Processed, Duplicate or Queued.
	Outcome Outcome
	// Messages are to be published by the router: what fn returned or, on a Duplicate, what is recorded of it.
	Messages []*message.Message
	// RecordedBy is the handler that produced the recorded messages of a Duplicate.
	RecordedBy string
	// Mismatch is set on a Duplicate whose content differs from the first delivery's (Delivery.AcceptMismatch).
	Mismatch bool
	// OperationRepeated is set on a Processed message whose operation (the whole of it) had been done before by another
	// one: what it gives back is that one's.
	OperationRepeated bool
	// ProposalUnused is set when fn did not take up the proposed Delivery.Operation.
	ProposalUnused bool
	// TxUnused is set when fn never asked for its transaction.
	TxUnused bool
	// TxRetries is how often the transaction was run again after a serialization failure; it is set beside an error too.
	TxRetries int
	// Wait is how long copies in flight elsewhere were waited for; it is set beside an error too.
	Wait time.Duration
}
