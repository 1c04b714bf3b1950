package inbox

import (
	"context"
	"crypto/sha256"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
)

// Inbox is a router middleware that handles every message exactly once, in the handler's own transaction. It is safe
// for concurrent use; one Inbox serves a whole router, and several routers.
type Inbox struct {
	store  Store
	config Config
	said   sync.Map // what was already logged once per handler

	intakes sync.Map // the names of the handlers that TwoPhase registered as intakes
}

// New gives an Inbox over store, whose memory it uses. It returns a [*ConfigError] for a nil store or a bad value.
func New(store Store, config Config) (*Inbox, error) {
	if isNil(store) {
		return nil, &ConfigError{"store", nil, "must not be nil: make one with sqlinbox.NewStore or pgxinbox.NewStore and check its error"}
	}
	if err := config.Validate(); err != nil {
		return nil, err
	}
	config.setDefaults()
	return &Inbox{store: store, config: config}, nil
}

// Middleware is the router middleware. It must be the innermost of the middlewares that retry, salvage or time out
// (see the package documentation for the order), and is given once: to the router or to each handler.
func (in *Inbox) Middleware(next message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) { return in.handle(msg, next, "") }
}

// As is the middleware for a single handler under the given name instead of the router's handler name: two handlers
// that are one consumer over two brokers must have one name. Namespace is put in front of it as usual.
func (in *Inbox) As(name string) message.HandlerMiddleware {
	return func(next message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) { return in.handle(msg, next, name) }
	}
}

func (in *Inbox) handle(msg *message.Message, next message.HandlerFunc, as string) ([]*message.Message, error) {
	if _, intake := in.intakes.Load(message.HandlerNameFromCtx(msg.Context())); intake {
		return next(msg)
	}
	if in.config.Bypass != nil && in.config.Bypass(msg) {
		return in.bypass(msg, next)
	}

	run := delivery{in: in, store: in.store, msg: msg, next: next, ctx: msg.Context(), start: time.Now()}
	d, err := in.delivery(&run, as)
	run.d = d
	if err != nil {
		return nil, run.end(Result{}, &Error{Phase: PhaseIdentify, Key: d.Key, Handler: d.Handler, Err: err})
	}
	if outer := openFrom(run.ctx); outer != nil {
		if outer.store == in.store && outer.key == d.Key {
			in.once("twice", d.Handler, "The inbox middleware is in this handler's chain twice: the inner one does nothing; remove it")
			return next(msg)
		}
		err := fmt.Errorf("%w (the outer message is %s)", ErrNested, outer.key)
		return nil, run.end(Result{}, &Error{Phase: PhaseClaim, Key: d.Key, Handler: d.Handler, Err: err})
	}
	return run.process()
}

// delivery finds out which message it is: by its identity, or by the lease of one that comes out of the store's queue.
func (in *Inbox) delivery(run *delivery, as string) (Delivery, error) {
	lease, leased := leaseOf(run.msg)
	if !leased || !lease.Of(in.store) {
		return in.identify(run.msg, as)
	}
	run.store, run.leased = lease, true
	d := lease.Delivery()
	d.Handler = message.HandlerNameFromCtx(run.ctx)
	d.Record = in.config.Outbox == nil
	return d, nil
}

// bypass leaves the message alone and tells so afterwards, also when the handler panics.
func (in *Inbox) bypass(msg *message.Message, next message.HandlerFunc) (produced []*message.Message, err error) {
	ctx, start := msg.Context(), time.Now()
	defer func() {
		in.observe(ctx, Event{
			Handler:  message.HandlerNameFromCtx(ctx),
			Topic:    message.SubscribeTopicFromCtx(ctx),
			Outcome:  OutcomeBypassed,
			Duration: time.Since(start),
			Err:      err,
		})
	}()
	return next(msg)
}

// identify finds out everything about the message that does not need the database.
func (in *Inbox) identify(msg *message.Message, as string) (Delivery, error) {
	ctx := msg.Context()
	d := Delivery{
		Handler:        message.HandlerNameFromCtx(ctx),
		Topic:          message.SubscribeTopicFromCtx(ctx),
		AcceptMismatch: in.config.Mismatch == MismatchReport,
		Record:         in.config.Outbox == nil,
	}
	d.Key.Consumer = in.consumer(msg, as, d.Handler)
	source, id, err := in.config.Identity(msg)
	d.Key.Source, d.Key.ID = source, id
	switch {
	case err != nil && !IsPermanent(err):
		return d, fmt.Errorf("%w: %w", ErrMessageIDRefused, err)
	case err != nil:
		return d, withUUID(err, msg)
	case id == "":
		return d, withUUID(ErrNoMessageID, msg)
	case d.Key.Consumer == "":
		return d, ErrNoConsumer
	}
	for _, part := range [...]struct{ name, value string }{{"id", id}, {"source", source}, {"consumer", d.Key.Consumer}} {
		if len(part.value) > MaxIDLength {
			return d, fmt.Errorf("%w: the %s has %d bytes, at most %d are allowed", ErrMessageIDTooLong, part.name, len(part.value), MaxIDLength)
		}
	}

	content := []byte(msg.Payload)
	if in.config.Fingerprint != nil {
		content = in.config.Fingerprint(msg)
	}
	sum := sha256.Sum256(content)
	copy(d.Fingerprint[:], sum[:])

	if in.config.MessageTime != nil {
		d.MessageTime = in.config.MessageTime(msg)
	} else {
		d.MessageTime, _ = IDTime(id)
	}
	if year := d.MessageTime.Year(); year > 9999 || year < 1 { // no database's time
		d.MessageTime = time.Time{}
	}
	if in.config.Claims != nil {
		if op, ok := in.config.Claims(msg, d.Key); ok {
			d.Operation = &op
		}
	}
	if in.config.KeyTime != nil {
		d.HasKeyTime, d.KeyTime = true, in.config.KeyTime(msg)
	}
	return d, nil
}

// withUUID names a message that has no usable id by the UUID it may have.
func withUUID(err error, msg *message.Message) error {
	if msg.UUID == "" {
		return err
	}
	return fmt.Errorf("%w (UUID %q)", err, msg.UUID)
}

func (in *Inbox) consumer(msg *message.Message, as, handler string) string {
	switch {
	case as != "":
		handler = as
	case in.config.Consumer != nil:
		return in.config.Consumer(msg)
	}
	if handler == "" || in.config.Namespace == "" {
		return handler
	}
	return in.config.Namespace + "/" + handler
}

// once logs a warning the first time it concerns this handler.
func (in *Inbox) once(what, handler, text string) {
	if _, said := in.said.LoadOrStore(what+"\x00"+handler, true); !said {
		in.config.Logger.Info(text, watermill.LogFields{"handler_name": handler})
	}
}

func (in *Inbox) observe(ctx context.Context, e Event) {
	if in.config.Observer != nil {
		in.config.Observer(ctx, e)
	}
}
