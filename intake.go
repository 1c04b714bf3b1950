package inbox

import (
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Intake gives a handler for the broker's topic that stores each message for the consumers and acks it at once; they
// handle it later, from the queue of the inbox's store. Config.Namespace is put in front of the names as usual. Without
// names it is stored for the consumer that the inbox would have, with the name of the intake's own handler.
//
// A message that is stored already, or handled, is acked without a second row. An error nacks the message; it is stored
// then for none of the consumers that the error names.
//
// It must not run inside the inbox's middleware, which is [ErrNested]; [TwoPhase] takes care of that.
func (in *Inbox) Intake(consumers ...string) message.NoPublishHandlerFunc {
	if len(consumers) == 0 {
		consumers = []string{""}
	}
	return func(msg *message.Message) error {
		var first error
		entries := make([]Entry, 0, len(consumers))
		start := time.Now()
		for _, name := range consumers {
			d, err := in.identify(msg, name)
			if outer := openFrom(msg.Context()); err == nil && outer != nil {
				err = fmt.Errorf("%w (the outer message is %s)", ErrNested, outer.key)
			}
			if err != nil {
				err = &Error{Phase: PhaseIdentify, Key: d.Key, Handler: d.Handler, Err: err}
				in.tellStored(msg, d, start, Stored{Err: err})
				return err
			}
			entry := Entry{Delivery: d, Message: msg}
			if in.config.OrderKey != nil {
				entry.OrderKey = in.config.OrderKey(msg)
			}
			entries = append(entries, entry)
		}
		queue, ok := in.store.(QueueStore)
		if !ok {
			return &Error{Phase: PhaseStore, Key: entries[0].Delivery.Key, Handler: entries[0].Delivery.Handler, Err: ErrNoQueue}
		}
		for i, stored := range queue.Enqueue(msg.Context(), entries) {
			in.tellStored(msg, entries[i].Delivery, start, stored)
			if first == nil {
				first = stored.Err
			}
		}
		return first
	}
}

// tellStored tells the observer what became of a message at its intake.
func (in *Inbox) tellStored(msg *message.Message, d Delivery, start time.Time, stored Stored) {
	v := &delivery{in: in, msg: msg, ctx: msg.Context(), start: start, d: d}
	v.tell(v.outcome(Result{Outcome: stored.Outcome, Mismatch: stored.Mismatch}, stored.Err), Result{Mismatch: stored.Mismatch}, stored.Err)
}
