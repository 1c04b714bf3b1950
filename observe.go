package inbox

import (
	"context"
	"time"
)

// Outcome is what became of one delivery.
type Outcome string

// The outcomes of a delivery.
const (
	// OutcomeProcessed is a first delivery whose work is committed.
	OutcomeProcessed Outcome = "processed"
	// OutcomeDuplicate is a copy of a handled message; the handler did not run.
	OutcomeDuplicate Outcome = "duplicate"
	// OutcomeStored is a message that its intake stored for later.
	OutcomeStored Outcome = "stored"
	// OutcomeQueued is a copy of a message that waits in the two-phase queue; the handler did not run.
	OutcomeQueued Outcome = "queued"
	// OutcomeInFlight is a copy that gave up waiting for another one ([ErrInFlight]).
	OutcomeInFlight Outcome = "in_flight"
	// OutcomeLate is a message older than the memory ([ErrLate]).
	OutcomeLate Outcome = "late"
	// OutcomeMismatch is other content under a used id: refused ([ErrMismatch]), or reported and treated as a
	// duplicate (MismatchReport), when Event.Err is nil.
	OutcomeMismatch Outcome = "mismatch"
	// OutcomeCollision is another message with the same storage key ([ErrKeyCollision]).
	OutcomeCollision Outcome = "collision"
	// OutcomeRefused is a message without a usable id or consumer.
	OutcomeRefused Outcome = "refused"
	// OutcomeAckedEarly is a first delivery whose work is committed, but which was acked before that: had the commit
	// failed, the message would have been lost.
	OutcomeAckedEarly Outcome = "acked_early"
	// OutcomeLost is a message that was acked before its work failed: nobody delivers it again.
	OutcomeLost Outcome = "lost"
	// OutcomeFailed is an error of the handler or the database; the transaction is rolled back.
	OutcomeFailed Outcome = "failed"
	// OutcomePanicked is a handler that panicked or called runtime.Goexit; the transaction is rolled back.
	OutcomePanicked Outcome = "panicked"
	// OutcomeBypassed is a message that Config.Bypass kept away from the inbox: no transaction, no memory.
	OutcomeBypassed Outcome = "bypassed"
)

// Layer is what decided the outcome of a delivery.
type Layer string

// The layers.
const (
	// LayerMessage is the memory of messages, by their ids.
	LayerMessage Layer = "message"
	// LayerOperation is the memory of operations, by their business keys: the message itself was new.
	LayerOperation Layer = "operation"
)

// Event tells an [Observer] what became of one delivery.
type Event struct {
	Key     Key
	Handler string
	Topic   string
	Outcome Outcome
	// Layer tells for OutcomeDuplicate, OutcomeMismatch and other outcomes whether the message's id or its operation's
	// decided.
	Layer Layer
	// TxUnused is set on processed deliveries whose handler never asked for the transaction: its writes, if any, are
	// not protected.
	TxUnused bool
	// Unguarded is set on deliveries whose message time is unknown, so that the late guard cannot watch over them.
	Unguarded bool
	// TxRetries is how often the transaction was run again after a serialization failure or deadlock.
	TxRetries int
	// Attempt counts the starts of a message from the queue, this one included; 0 is a message from a broker.
	Attempt int
	// Duration is the time in the middleware; Wait is the part of it spent waiting for copies elsewhere.
	Duration, Wait time.Duration
	// Err is what the middleware returned, nil for an acked delivery.
	Err error
}

// Observer is told once about every delivery, after the fact, on the goroutine of the delivery and before the ack.
// It must be quick, safe for concurrent use, and must not panic.
type Observer func(ctx context.Context, e Event)
