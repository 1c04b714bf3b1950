package sqlinbox

import (
	"crypto/sha256"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	inbox "github.com/watermill-contrib/watermill-inbox"
)

// PublisherConfig is how a [Publisher] puts messages into the queue. The zero value works.
type PublisherConfig struct {
	// OrderKey: messages of one consumer with equal keys are handled one after the other, in the order in which they were
	// published. An empty key is no order. Defaults to none.
	OrderKey func(msg *message.Message) string
}

// Publisher is a message.Publisher into the queue; its topics are consumers, with their whole names. A message's UUID is
// its id: published twice, it is handled once.
type Publisher struct {
	queue  *Queue
	config PublisherConfig
}

var _ message.Publisher = (*Publisher)(nil)

// NewPublisher gives a publisher into the queue.
func (q *Queue) NewPublisher(config PublisherConfig) *Publisher {
	return &Publisher{queue: q, config: config}
}

// Publish stores the messages for the consumer, all or none of them: work for later, such as calls to other systems. With
// the context of a message that is being handled with a transaction of this store, of the first of the messages, it
// takes part in that transaction. Messages that are known already are left out without an error; other content under a
// used UUID is inbox.ErrMismatch.
func (p *Publisher) Publish(consumer string, messages ...*message.Message) error {
	if len(messages) == 0 {
		return nil
	}
	entries := make([]inbox.Entry, len(messages))
	for i, msg := range messages {
		switch {
		case consumer == "":
			return fmt.Errorf("inbox: publish: %w", inbox.ErrNoConsumer)
		case msg.UUID == "":
			return fmt.Errorf("inbox: publish to %s: %w", consumer, inbox.ErrNoMessageID)
		case len(msg.UUID) > inbox.MaxIDLength || len(consumer) > inbox.MaxIDLength:
			return fmt.Errorf("inbox: publish to %s: %w", consumer, inbox.ErrMessageIDTooLong)
		}
		sum := sha256.Sum256(msg.Payload)
		made, _ := inbox.IDTime(msg.UUID)
		entry := inbox.Entry{Message: msg, Delivery: inbox.Delivery{
			Key: inbox.Key{Consumer: consumer, ID: msg.UUID}, Fingerprint: inbox.Fingerprint(sum[:16]), MessageTime: made,
		}}
		if p.config.OrderKey != nil {
			entry.OrderKey = p.config.OrderKey(msg)
		}
		entries[i] = entry
	}
	return p.queue.inner.Publish(messages[0].Context(), entries)
}

// Close does nothing: there is nothing of its own.
func (p *Publisher) Close() error { return nil }
