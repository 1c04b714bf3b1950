package inbox

import (
	"context"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
)

// ReplayPolicy says how long the messages that a handler returned come back with its duplicates.
type ReplayPolicy string

const (
	// ReplayUntilAcked gives them back until an ack has proved that the router published them; then they are deleted, in
	// batches in the background. A crash before that means one more replay, with the same UUIDs. This is the default.
	ReplayUntilAcked ReplayPolicy = "until_acked"
	// ReplayAlways gives them back with every duplicate: for downstreams that lose messages.
	ReplayAlways ReplayPolicy = "always"
)

// Outbox gives a publisher that writes into the transaction of ctx, or [ErrNoTx] where there is none. Package
// sqlinbox/outbox makes one for the schemas of watermill-sql.
type Outbox func(ctx context.Context) (message.Publisher, error)

// AckedStore is a [Store] that deletes recorded messages once they are published.
type AckedStore interface {
	Store
	// Acked says that the messages recorded for d were published. It does not wait for the database.
	Acked(d Delivery)
}

// The metadata that a produced message inherits from the one it was produced for: what Watermill's CorrelationID
// middleware sets, and the trace context of the W3C (https://www.w3.org/TR/trace-context/, …/baggage/).
var inherited = [...]string{"correlation_id", "traceparent", "tracestate", "baggage"}

// complete makes produced messages ready to be recorded: each has a UUID, which then stays the same in every replay,
// and the correlation id and trace context of the message it was produced for.
func complete(produced []*message.Message, from message.Metadata) {
	for _, msg := range produced {
		if msg.UUID == "" {
			msg.UUID = NewUUID()
		}
		for _, field := range inherited {
			value := from.Get(field)
			if value == "" || msg.Metadata.Get(field) != "" {
				continue
			}
			if msg.Metadata == nil {
				msg.Metadata = message.Metadata{}
			}
			msg.Metadata.Set(field, value)
		}
	}
}

// sendOut publishes what the handler returned through the outbox, inside the transaction of ctx.
func (v *delivery) sendOut(ctx context.Context, produced []*message.Message) error {
	topic := message.PublishTopicFromCtx(ctx)
	if topic == "" {
		return fmt.Errorf("%w: handler %q returned %d messages", ErrNoPublishTopic, v.d.Handler, len(produced))
	}
	publisher, err := v.in.config.Outbox(ctx)
	if err != nil {
		return fmt.Errorf("outbox: %w", err)
	}
	for _, msg := range produced {
		msg.SetContext(ctx)
	}
	if err := publisher.Publish(topic, produced...); err != nil {
		return fmt.Errorf("outbox: publish to %s: %w", topic, err)
	}
	return nil
}

// deletes tells whether recorded messages are deleted after the ack, which takes a store that can.
func (in *Inbox) deletes() bool {
	_, can := in.store.(AckedStore)
	return can && in.config.Replay == ReplayUntilAcked
}

// watch waits, beside the router, for the ack that proves that the recorded messages were published.
//
// The router publishes what the middleware returned and acks only if that worked. An ack that is there already was
// given by somebody else and proves nothing. The wait ends with the ack, the nack, or the message's context, which
// subscribers end right after the ack: so the ack is looked at once more.
func (v *delivery) watch() {
	if !v.in.deletes() || isAcked(v.msg) {
		return
	}
	msg, done, d := v.msg, v.ctx.Done(), v.d
	go func() {
		select {
		case <-msg.Acked():
		case <-msg.Nacked():
			return
		case <-done:
			if !isAcked(msg) {
				return
			}
		}
		v.in.store.(AckedStore).Acked(d) //nolint:forcetypeassert // deletes has looked
	}()
}

// TxPublisherConfig is the configuration of a [TxPublisher].
type TxPublisherConfig struct {
	// Fallback publishes messages whose context carries no transaction. Defaults to none: they fail with ErrNoTx.
	Fallback message.Publisher
}

// TxPublisher is a message.Publisher that finds the transaction in the context of the first message, for publishers
// that are made once and used in many handlers, such as a cqrs.EventBus.
type TxPublisher struct {
	outbox Outbox
	config TxPublisherConfig
}

var _ message.Publisher = (*TxPublisher)(nil)

// NewTxPublisher gives a publisher into the outbox. It returns a [*ConfigError] for a nil outbox.
func NewTxPublisher(outbox Outbox, config TxPublisherConfig) (*TxPublisher, error) {
	if outbox == nil {
		return nil, &ConfigError{"outbox", nil, "must not be nil"}
	}
	return &TxPublisher{outbox: outbox, config: config}, nil
}

// Publish writes the messages into the transaction of the first one's context. All of them are expected to carry the
// same context; that of the first one counts. Without a transaction they go to the Fallback, or fail with [ErrNoTx].
func (p *TxPublisher) Publish(topic string, messages ...*message.Message) error {
	if len(messages) == 0 {
		return nil
	}
	ctx := messages[0].Context()
	publisher, err := p.outbox(ctx)
	switch {
	case err == nil:
		return publisher.Publish(topic, messages...)
	case isAny(err, []error{ErrNoTx}) && p.config.Fallback != nil:
		return p.config.Fallback.Publish(topic, messages...)
	}
	return fmt.Errorf("inbox: publish to %s: %w", topic, err)
}

// Close does nothing: there is nothing of its own, and the router closes the publishers of its handlers.
func (p *TxPublisher) Close() error { return nil }

// checkReplay refuses recorded messages of another handler of the same consumer that this one cannot publish.
func (v *delivery) checkReplay(result Result) error {
	if len(result.Messages) == 0 || result.Outcome != OutcomeDuplicate || result.RecordedBy == v.d.Handler {
		return nil
	}
	if message.PublishTopicFromCtx(v.ctx) != "" {
		return nil
	}
	return fmt.Errorf("%w: handler %q of this consumer handled the message and returned %d messages that are not published yet; handler %q, where its copy arrived, cannot publish them",
		ErrNoPublishTopic, result.RecordedBy, len(result.Messages), v.d.Handler)
}

// logReplay tells, as Debug, that recorded messages go out again.
func (v *delivery) logReplay(result Result) {
	if result.Outcome == OutcomeDuplicate && len(result.Messages) > 0 {
		v.in.config.Logger.Debug("Recorded messages are given back with the duplicate", v.fields().Add(watermill.LogFields{"messages": len(result.Messages)}))
	}
}
