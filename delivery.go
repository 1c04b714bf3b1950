package inbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
)

// delivery is one message on its way through the middleware.
type delivery struct {
	in     *Inbox
	store  Store // the inbox's, or the lease of a message from its queue
	leased bool
	msg    *message.Message
	next   message.HandlerFunc
	ctx    context.Context //nolint:containedctx // the message's own, given back when the delivery is over
	d      Delivery
	start  time.Time
	guard  *guard
}

func (v *delivery) process() (produced []*message.Message, err error) {
	ctx, g := newGuard(v.msg, v.in.config.Grace)
	v.guard = g
	arrived := arrival{v.msg.UUID, bytes.Clone(v.msg.Payload), maps.Clone(v.msg.Metadata)}
	returned := false
	defer func() {
		v.msg.SetContext(v.ctx)
		if err != nil || !returned {
			arrived.giveBack(v.msg)
		}
		g.release()
		if !returned { // a panic or runtime.Goexit passes through; the store has rolled back
			v.tell(OutcomePanicked, Result{}, nil)
		}
	}()

	result, err := v.store.Process(ctx, v.d, v.work(arrived))
	returned = true
	if err == nil {
		if err = v.checkReplay(result); err != nil {
			err = &Error{Phase: PhaseClaim, Key: v.d.Key, Handler: v.d.Handler, Err: err}
		}
	}
	if err = v.end(result, err); err != nil {
		return nil, err
	}
	if len(result.Messages) > 0 {
		v.logReplay(result)
		if !v.leased { // the queue knows of the ack itself
			v.watch()
		}
	}
	return result.Messages, nil
}

// work gives the Func of this delivery: the handler, on the message as it arrived.
func (v *delivery) work(arrived arrival) Func {
	again := false
	return func(ctx context.Context) ([]*message.Message, error) {
		if again { // a serialization failure: what the first call changed in the message is undone
			arrived.restore(v.msg)
		}
		again = true

		mark := &open{store: v.in.store, key: v.d.Key}
		v.msg.SetContext(withOpen(ctx, mark))
		v.guard.handle(true)
		defer func() {
			v.guard.handle(false)
			mark.over.Store(true)
			v.msg.SetContext(v.ctx)
		}()
		produced, err := v.next(v.msg)
		if err != nil || len(produced) == 0 {
			return produced, err
		}
		complete(produced, arrived.metadata)
		if v.in.config.Outbox != nil {
			return nil, v.sendOut(v.msg.Context(), produced) //nolint:contextcheck // ctx with the mark that nesting.go looks for
		}
		return produced, nil
	}
}

// arrival is a message as it came.
type arrival struct {
	uuid     string
	payload  message.Payload
	metadata message.Metadata
}

// restore makes msg what it was, for another run of the handler.
func (a arrival) restore(msg *message.Message) {
	msg.UUID, msg.Payload, msg.Metadata = a.uuid, bytes.Clone(a.payload), maps.Clone(a.metadata)
}

// giveBack undoes what a failed delivery changed: a Retry around the inbox comes back with this message, which must be
// identified as the one that arrived. Metadata that the handler added stays, for a poison queue to keep.
func (a arrival) giveBack(msg *message.Message) {
	msg.UUID, msg.Payload = a.uuid, a.payload
	if msg.Metadata == nil {
		msg.Metadata = a.metadata
		return
	}
	maps.Copy(msg.Metadata, a.metadata)
}

// end tells what became of the delivery and gives the error that the middleware returns.
func (v *delivery) end(result Result, err error) error {
	if err != nil {
		err = v.withContextError(err)
	}
	v.tell(v.outcome(result, err), result, err)
	return err
}

// withContextError adds the context's error when it ended meanwhile: the router logs a cancelled message quietly.
func (v *delivery) withContextError(err error) error {
	ctxErr := v.ctx.Err()
	if ctxErr == nil || errors.Is(err, ctxErr) {
		return err
	}
	return fmt.Errorf("%w (%w)", err, ctxErr)
}

func (v *delivery) outcome(result Result, err error) Outcome {
	switch {
	case err == nil && result.Mismatch:
		return OutcomeMismatch
	case err == nil && result.Outcome == OutcomeProcessed && isAcked(v.msg):
		return OutcomeAckedEarly
	case err == nil && result.OperationRepeated:
		return OutcomeDuplicate
	case err == nil:
		return result.Outcome
	case errors.Is(err, ErrInFlight):
		return OutcomeInFlight // the other copy has the message, acked or not
	case isAcked(v.msg):
		return OutcomeLost
	case errors.Is(err, ErrMismatch):
		return OutcomeMismatch
	case errors.Is(err, ErrLate):
		return OutcomeLate
	case errors.Is(err, ErrKeyCollision):
		return OutcomeCollision
	}
	var e *Error
	if errors.As(err, &e) && e.Phase == PhaseIdentify {
		return OutcomeRefused
	}
	return OutcomeFailed
}

func (v *delivery) tell(outcome Outcome, result Result, err error) {
	if outcome == OutcomePanicked && isAcked(v.msg) {
		outcome = OutcomeLost
	}
	v.log(outcome, result, err)
	v.in.observe(v.ctx, Event{
		Key:       v.d.Key,
		Handler:   v.d.Handler,
		Topic:     v.d.Topic,
		Outcome:   outcome,
		Layer:     layerOf(result, err),
		TxUnused:  result.TxUnused,
		Unguarded: v.d.MessageTime.IsZero(),
		TxRetries: result.TxRetries,
		Attempt:   v.d.Attempt,
		Duration:  time.Since(v.start),
		Wait:      result.Wait,
		Err:       err,
	})
}

func layerOf(result Result, err error) Layer {
	var operation *OperationError
	if result.OperationRepeated || errors.As(err, &operation) {
		return LayerOperation
	}
	return LayerMessage
}

func (v *delivery) log(outcome Outcome, result Result, err error) {
	logger := v.in.config.Logger
	if result.TxUnused {
		v.in.once("unused", v.d.Handler, "The handler did not ask for the inbox's transaction (TxFromContext): what it writes elsewhere is not protected from duplicates")
	}
	if result.ProposalUnused {
		v.in.once("proposal", v.d.Handler, "Config.Claims proposes an operation that this handler does not take up: add (*businesskey.Keys).Middleware to it, or let Claims return false for its messages")
	}
	switch outcome {
	case OutcomeDuplicate, OutcomeQueued:
		logger.Debug("Message is a duplicate, its handler is not called", v.fields())
	case OutcomeMismatch:
		if err == nil {
			v.in.once("mismatch", v.d.Handler, "A message id came again with other content (MismatchReport): treated as a duplicate")
		}
	case OutcomeAckedEarly:
		if _, said := v.in.said.LoadOrStore("early\x00"+v.d.Handler, true); !said {
			logger.Error("Messages of this handler are acked before their work is committed: a crash or a failed commit loses them. Remove InstantAck or the handler's msg.Ack()", nil, v.fields())
		}
	case OutcomeLost:
		logger.Error("Message is lost: it was acked before its work failed, so nobody delivers it again. Remove InstantAck or the handler's msg.Ack()", err, v.fields())
	}
}

func (v *delivery) fields() watermill.LogFields {
	return watermill.LogFields{
		"handler_name": v.d.Handler,
		"consumer":     v.d.Key.Consumer,
		"message_id":   v.d.Key.ID,
		"message_uuid": v.msg.UUID,
	}
}
