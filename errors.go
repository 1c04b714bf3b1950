package inbox

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// Errors that no retry of the same message can cure; [IsPermanent] is true for them. They belong into a poison queue
// or another place where someone looks; the message is not lost there.
var (
	// ErrNoMessageID means that the message has no id, so that its copies cannot be told from other messages.
	ErrNoMessageID = errors.New("message has no id: set one at the producer, or choose another Config.Identity")
	// ErrMessageIDTooLong means that the id, source or consumer is longer than MaxIDLength.
	ErrMessageIDTooLong = errors.New("message id is too long")
	// ErrMessageIDRefused means that Config.Identity returned an error of its own, which is wrapped with it.
	ErrMessageIDRefused = errors.New("message id was refused by Config.Identity")
	// ErrMismatch means that the message id, or the operation id, was used before for other content. Either the producer reuses ids (mend it, or
	// choose another Config.Identity) or it serializes one message in several ways (Config.Fingerprint over the fields
	// that matter, or MismatchReport).
	ErrMismatch = errors.New("the id was used before for other content")
	// ErrKeyCollision means that two different ids have the same storage key: chance (2 to the 80th and rarer) or an attack.
	ErrKeyCollision = errors.New("another id has the same storage key")
	// ErrNoOperationID means that a message, or a call of Do, has no operation id.
	ErrNoOperationID = errors.New("no operation id: set the metadata operation_id at the producer, or choose another businesskey.Config.OperationID")
	// ErrOperationIDTooLong means that the operation id or its scope is longer than MaxIDLength.
	ErrOperationIDTooLong = errors.New("operation id is too long")
	// ErrOperationIDRefused means that businesskey.Config.OperationID returned an error of its own, which is wrapped with it.
	ErrOperationIDRefused = errors.New("operation id was refused by businesskey.Config.OperationID")
	// ErrResultTooLarge means that an operation's result is larger than businesskey.Config.MaxResult.
	ErrResultTooLarge = errors.New("the operation's result is too large to be recorded")
	// ErrLate means that the message is not newer than what the memory has already forgotten: it may have been handled.
	ErrLate = errors.New("message is older than the memory: it may have been handled before")
)

// Errors that are not the message's fault; [IsTransient] is true for them. The message stays in the broker and is
// delivered again; it must not go to a poison queue.
var (
	// ErrInFlight means that a copy of the message was still being handled elsewhere when InFlightWait ended; on SQLite,
	// whose writers all wait for each other, it may also have been another message.
	ErrInFlight = errors.New("a copy of the message is, or may be, in flight elsewhere")
	// ErrNoConsumer means that neither the router nor Config.Consumer named a consumer.
	ErrNoConsumer = errors.New("no consumer: run the handler in a router, use As, or set Config.Consumer")
	// ErrKeyScheme means that the consumer's earlier messages were remembered under another key scheme.
	ErrKeyScheme = errors.New("the consumer's memory has another key scheme: Config.KeyTime cannot be added to or removed from a consumer")
	// ErrNoPartition means that the memory is partitioned and the message's partition is missing.
	ErrNoPartition = errors.New("the memory has no partition for this message")
	// ErrTxManaged means that the handler ended the transaction that belongs to the inbox. Where it could really commit
	// (a *sql.Tx, or COMMIT as SQL), its work and the claim are committed, and the redelivery is a duplicate.
	ErrTxManaged = errors.New("the transaction belongs to the inbox: remove the handler's Commit, Rollback or `defer tx.Rollback()`, and COMMIT or ROLLBACK in its SQL")
	// ErrTxAborted means that the handler returned nil after an SQL error that had already aborted its transaction.
	ErrTxAborted = errors.New("the handler returned nil, but a statement in its transaction had failed: return the error, or wrap the statement in a savepoint")
	// ErrTxBusy means that the handler returned while a query of its transaction was still open.
	ErrTxBusy = errors.New("the handler returned with a query of its transaction still open: close its rows")
	// ErrNested means that an inbox was entered while another message's transaction was open in the same call chain.
	ErrNested = errors.New("an inbox inside another open transaction of an inbox or operation: two transactions cannot commit together; add the inbox middleware once, and businesskey inside it")
	// ErrNoScope means that an operation outside any message has no scope.
	ErrNoScope = errors.New("no scope for the operation: set Operation.Scope or businesskey.Config.Scope")
	// ErrNoQueue means that the store cannot keep messages for later.
	ErrNoQueue = errors.New("the store has no queue: use a sqlinbox.Store or pgxinbox.Store")
	// ErrNotLeased means that a step or an idempotency key was asked for outside a message from the queue.
	ErrNotLeased = errors.New("not a message from the queue: Step belongs into the handler of a two-phase consumer")
	// ErrTxOpen means that a step was asked for after the transaction that completes the message had begun.
	ErrTxOpen = errors.New("the message's transaction is open: do what takes long before TxFromContext")
	// ErrLeaseLost means that the message was given to another worker meanwhile, because its lease was not renewed in time;
	// nothing of this attempt is committed.
	ErrLeaseLost = errors.New("the lease of the message is lost: another worker may have it")
	// ErrNoPublishTopic means that there are messages to publish in a handler that has no publish topic.
	ErrNoPublishTopic = errors.New("the handler has no publish topic: register it with AddHandler")
	// ErrNoTx means that the context carries no open transaction of the store that was asked.
	ErrNoTx = errors.New("no inbox transaction in this context: use msg.Context() inside a handler behind the inbox middleware")
	// ErrSchema means that the inbox's tables are missing or of another version.
	ErrSchema = errors.New("the inbox's tables are missing or not up to date")
	// ErrReadOnly means that the database does not accept writes: a standby, or a read-only database or transaction.
	ErrReadOnly = errors.New("the database is read-only")
	// ErrSerialization means that the database gave the transaction up in favour of another one, and TxRetries are used up.
	ErrSerialization = errors.New("the transaction met a serialization failure or deadlock")
	// ErrUnavailable means that the database could not be reached, or refused to serve for the time being.
	ErrUnavailable = errors.New("the database is unavailable")
	// ErrCommitUnknown means that the reply to COMMIT was lost: the message may or may not have been handled; its
	// redelivery finds out.
	ErrCommitUnknown = errors.New("the outcome of COMMIT is unknown")
)

var permanentErrors = [...]error{
	ErrNoMessageID, ErrMessageIDTooLong, ErrMessageIDRefused, ErrMismatch, ErrKeyCollision, ErrLate,
	ErrNoOperationID, ErrOperationIDTooLong, ErrOperationIDRefused, ErrResultTooLarge,
}

var transientErrors = [...]error{
	context.Canceled, context.DeadlineExceeded,
	ErrInFlight, ErrNoConsumer, ErrKeyScheme, ErrNoPartition, ErrTxManaged, ErrTxAborted, ErrTxBusy, ErrNested, ErrNoScope, ErrNoQueue, ErrNotLeased, ErrTxOpen, ErrLeaseLost, ErrNoPublishTopic,
	ErrNoTx, ErrSchema,
	ErrReadOnly, ErrSerialization, ErrUnavailable, ErrCommitUnknown,
}

// IsPermanent tells that no retry of the message cures err: no usable id, an id used for other content, late. Give
// middleware.Retry a ShouldRetry that is false for it.
func IsPermanent(err error) bool {
	var own *permanentError
	return errors.As(err, &own) || isAny(err, permanentErrors[:])
}

// Permanent marks an error of a handler as one that no retry cures, such as an invalid order: [IsPermanent] is true for
// it, and a message from the queue is dead at once. Nil stays nil.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return &permanentError{err}
}

type permanentError struct{ error }

func (e *permanentError) Unwrap() error { return e.error }

// IsTransient tells that the message is not at fault and must stay in the broker: in flight elsewhere, the context
// ended, the database cannot serve, or the program is put together wrongly. Give middleware.PoisonQueueWithFilter a
// filter that is false for it. An error may be neither: most errors of handlers are.
func IsTransient(err error) bool { return !IsPermanent(err) && isAny(err, transientErrors[:]) }

func isAny(err error, targets []error) bool {
	for _, target := range targets {
		if errors.Is(err, target) {
			return true
		}
	}
	return false
}

// Phase is the part of a delivery in which an error happened.
type Phase string

// The phases of a delivery.
const (
	PhaseIdentify Phase = "identify" // finding consumer, source, id
	PhaseClaim    Phase = "claim"    // beginning the transaction and claiming the id
	PhaseHandle   Phase = "handle"   // the handler
	PhaseCommit   Phase = "commit"   // committing
	PhaseStore    Phase = "store"    // storing it for later
)

// Error tells what happened to which message. Everything the middleware returns is an *Error; errors.Is and
// errors.As reach the sentinel, the handler's own error and the database's error behind it.
type Error struct {
	Phase   Phase
	Key     Key
	Handler string // the router's handler
	Err     error
}

// Error gives "inbox: phase consumer/id: cause", with the handler's name where the consumer does not end in it.
func (e *Error) Error() string {
	handler := ""
	if e.Handler != "" && e.Handler != e.Key.Consumer && !strings.HasSuffix(e.Key.Consumer, "/"+e.Handler) {
		handler = fmt.Sprintf(" (handler %s)", e.Handler)
	}
	return fmt.Sprintf("inbox: %s %s%s: %v", e.Phase, e.Key, handler, e.Err)
}

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Err }

// ConfigError is a bad value in a Config; constructors return it before anything is touched.
type ConfigError struct {
	Field  string // the field's path, such as "sqlinbox.Config.TablePrefix"
	Value  any
	Reason string
}

// Error names the field, the value and the reason.
func (e *ConfigError) Error() string {
	value := fmt.Sprintf("%#v", e.Value)
	if s, ok := e.Value.(fmt.Stringer); ok {
		value = s.String()
	}
	return fmt.Sprintf("inbox: bad %s (%s): %s", e.Field, value, e.Reason)
}
