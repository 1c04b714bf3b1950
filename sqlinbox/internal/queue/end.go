package queue

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox/internal/engine"
)

// endTimeout bounds the statement that ends a row. If it fails the lease runs out, and the row is taken up again.
const endTimeout = 10 * time.Second

var errNacked = errors.New("the message was nacked")

func errStarts(n int) error {
	return fmt.Errorf("%d starts in a row had no end: the message may kill its process", n)
}

// acked ends the row of an acked message.
func (w *worker) acked(lease *engine.Lease) {
	switch state, err := lease.State(); state {
	case engine.LeaseUntouched:
		w.settings.Logger.Info("A message from the queue was acked without the inbox's middleware: it is handled at least once, not once", w.fields(lease))
		w.finishRow(lease)
	case engine.LeasePublishing:
		w.finishRow(lease)
	case engine.LeaseDone:
		w.promoted(lease)
	case engine.LeaseFailed:
		w.settings.Logger.Info("A message from the queue was acked after its attempt had failed: it is tried again all the same; let PoisonQueue and the like pass it by (inbox.Unleased)", w.fields(lease))
		w.failed(lease, err)
	}
}

// nacked ends the attempt of a nacked message.
func (w *worker) nacked(ctx context.Context, lease *engine.Lease) {
	switch state, err := lease.State(); state {
	case engine.LeaseDone:
		w.promoted(lease)
	case engine.LeasePublishing:
		w.retry(lease, errors.New("what it returned could not be published"))
	case engine.LeaseUntouched:
		if ctx.Err() != nil {
			w.release(lease)
			return
		}
		w.failed(lease, errNacked)
	case engine.LeaseFailed:
		if ctx.Err() != nil && !inbox.IsPermanent(err) {
			w.release(lease) // a shutdown is not charged, whatever the handler calls it
			return
		}
		w.failed(lease, err)
	}
}

// failed lets the message wait for its next attempt, or gives it up.
func (w *worker) failed(lease *engine.Lease, cause error) {
	row := lease.Row()
	switch {
	case engine.IsBusyOperation(cause): // nobody's fault: it does not count
		w.postpone(lease, backoff(w.settings.BackoffMin, w.settings.BackoffMax, 1))
	case row.State == engine.StateWaiting && (inbox.IsPermanent(cause) || row.Attempts >= w.settings.MaxAttempts):
		w.bury(lease, cause)
	default:
		w.retry(lease, cause)
	}
}

func (w *worker) retry(lease *engine.Lease, cause error) {
	row := lease.Row()
	attempt := row.Attempts
	if row.State == engine.StatePublishing { // it has no attempts any more
		attempt = row.Unfinished
	}
	wait := backoff(w.settings.BackoffMin, w.settings.BackoffMax, attempt)
	w.end(lease, "retry", func(ctx context.Context, row *engine.QueueRow, token engine.Token) error {
		return w.queue.backend.Retry(ctx, row, token, wait, reason(cause))
	})
	w.queue.wakers.wake(w.consumer) // for the new due time
}

// postpone lets the message wait as if this attempt had not been.
func (w *worker) postpone(lease *engine.Lease, wait time.Duration) {
	w.end(lease, "postpone", func(ctx context.Context, row *engine.QueueRow, token engine.Token) error {
		return w.queue.backend.Postpone(ctx, row, token, wait)
	})
	w.queue.wakers.wake(w.consumer)
}

// finishRow ends the row of a message that is handled and published.
func (w *worker) finishRow(lease *engine.Lease) {
	w.end(lease, "finish", w.queue.backend.Finish)
	if lease.Row().Lane != 0 {
		w.queue.wakers.wake(w.consumer)
	}
}

// promoted wakes the workers for the next message of a lane, which may still have to be made ready.
func (w *worker) promoted(lease *engine.Lease) {
	if lease.Row().Lane == 0 {
		return
	}
	if lease.Unpromoted() {
		w.end(lease, "promote", func(ctx context.Context, row *engine.QueueRow, _ engine.Token) error {
			return w.queue.backend.Promote(ctx, row.ConsumerID, row.Lane)
		})
	}
	w.queue.wakers.wake(w.consumer)
}

// release gives the message back as if it had never been leased.
func (w *worker) release(lease *engine.Lease) {
	if lease.Operated() { // its operations are for everybody again
		w.postpone(lease, 0)
		return
	}
	w.end(lease, "release", w.queue.backend.Release)
}

func (w *worker) end(lease *engine.Lease, what string, fn func(context.Context, *engine.QueueRow, engine.Token) error) {
	ctx, cancel := context.WithTimeout(context.Background(), endTimeout)
	defer cancel()
	if err := fn(ctx, lease.Row(), lease.Token()); err != nil {
		w.settings.Logger.Error("The row of a message could not be ended; it is taken up again when its lease has run out", err, w.fields(lease).Add(watermill.LogFields{"end": what}))
	}
}

// Dead is a message that is given up.
type Dead struct {
	Key      inbox.Key
	Attempts int
	Cause    error
	Message  *message.Message
}

// bury gives a message up until an operator decides. OnDead takes part in that; if it fails, the message is tried again.
func (w *worker) bury(lease *engine.Lease, cause error) {
	if !w.buried(lease, cause) {
		w.retry(lease, cause)
	}
}

// buryKiller is bury for a message that ends its process: whatever becomes of OnDead, it is not started again.
func (w *worker) buryKiller(lease *engine.Lease, cause error) {
	if !w.buried(lease, cause) {
		w.postpone(lease, backoff(w.settings.BackoffMin, w.settings.BackoffMax, lease.Row().Unfinished))
	}
}

func (w *worker) buried(lease *engine.Lease, cause error) bool {
	ctx, cancel := context.WithTimeout(context.Background(), endTimeout)
	defer cancel()
	row := lease.Row()
	fields := w.fields(lease).Add(watermill.LogFields{"attempts": row.Attempts})
	var onDead func(ctx context.Context) error
	if w.settings.OnDead != nil {
		onDead = func(ctx context.Context) (err error) {
			defer func() {
				if p := recover(); p != nil { // here is no router with a Recoverer around it
					err = fmt.Errorf("OnDead panicked: %v", p)
				}
			}()
			return w.settings.OnDead(ctx, Dead{Key: lease.Delivery().Key, Attempts: row.Attempts, Cause: cause, Message: lease.Message()})
		}
	}
	if err := lease.Bury(ctx, reason(cause), onDead); err != nil {
		w.settings.Logger.Error("A message could not be marked as dead, it is tried again", err, fields)
		return false
	}
	w.settings.Logger.Error("Message is dead: it waits for an operator", cause, fields)
	return true
}

func (w *worker) fields(lease *engine.Lease) watermill.LogFields {
	return watermill.LogFields{"consumer": w.name, "message_id": engine.DecodeText(lease.Row().MessageID)}
}

// mostReason is how much of an error is kept.
const mostReason = 2000

// reason is an error as readable text: no payload is in it unless the handler put it there.
func reason(err error) string {
	text := err.Error()
	if len(text) > mostReason {
		text = text[:mostReason] + "..."
	}
	return engine.EncodeText(text)
}

// backoff grows from shortest to longest, with jitter.
func backoff(shortest, longest time.Duration, attempt int) time.Duration {
	d := longest
	if attempt = max(attempt, 1); attempt < 32 {
		d = min(longest, shortest<<(attempt-1))
	}
	if d <= 0 {
		d = longest
	}
	return d/2 + rand.N(d/2+1)
}
