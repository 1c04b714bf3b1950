package sqlinbox

import (
	"context"
	"math"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox/internal/queue"
)

// SubscriberConfig is how a [Subscriber] works on the queue. The zero value works.
type SubscriberConfig struct {
	// Concurrency is how many messages of one subscription are at work at once. Defaults to 10.
	Concurrency int
	// LeaseTime is how long a message belongs to this process without a renewal; it is renewed three times in that time.
	// When a process dies, its messages are taken up after it. Defaults to 30 seconds; at least 1 second.
	LeaseTime time.Duration
	// PollInterval is the longest time between two looks for messages that other processes have stored; those of this
	// process wake the subscriber at once. Defaults to 1 second.
	PollInterval time.Duration
	// MaxAttempts is how often a message is tried before it is dead; -1 is no limit, for handlers whose errors are all of
	// the other system's making. Defaults to 10.
	MaxAttempts int
	// MaxStarts is how often in a row a message may be started without an end, by processes that died, before it is dead.
	// Defaults to 3.
	MaxStarts int
	// BackoffMin and BackoffMax bound the time between attempts, which doubles each time. Default to 1 second and 5 minutes.
	BackoffMin, BackoffMax time.Duration
	// CloseTimeout is how long Close waits for messages at work. Defaults to 30 seconds.
	CloseTimeout time.Duration
	// OnDead is called in the transaction that marks a message as dead (TxFromContext), for a compensation. Its error leaves
	// the message waiting for another attempt. Defaults to none.
	OnDead func(ctx context.Context, dead Dead) error
	// Logger is told of dead messages and database errors. Defaults to that of the store.
	Logger watermill.LoggerAdapter
}

// Validate gives an [*inbox.ConfigError] for the first bad value.
func (c SubscriberConfig) Validate() error {
	bad := func(field string, value any, reason string) error {
		return &inbox.ConfigError{Field: "sqlinbox.SubscriberConfig." + field, Value: value, Reason: reason}
	}
	switch {
	case c.Concurrency < 0:
		return bad("Concurrency", c.Concurrency, "must be a number, or 0 for the default")
	case c.LeaseTime != 0 && c.LeaseTime < time.Second:
		return bad("LeaseTime", c.LeaseTime, "must be at least 1 second, or 0 for the default")
	case c.PollInterval < 0:
		return bad("PollInterval", c.PollInterval, "must be a time, or 0 for the default")
	case c.MaxAttempts < -1:
		return bad("MaxAttempts", c.MaxAttempts, "must be a number, 0 for the default or -1 for no limit")
	case c.MaxStarts < 0:
		return bad("MaxStarts", c.MaxStarts, "must be a number, or 0 for the default")
	case c.BackoffMin < 0 || c.BackoffMax < 0 || c.BackoffMax != 0 && c.BackoffMax < c.BackoffMin:
		return bad("BackoffMax", c.BackoffMax, "must not be less than BackoffMin")
	case c.CloseTimeout < 0:
		return bad("CloseTimeout", c.CloseTimeout, "must be a time, or 0 for the default")
	}
	return nil
}

func orDefault[T int | time.Duration](value, fallback T) T {
	if value == 0 {
		return fallback
	}
	return value
}

func (c SubscriberConfig) settings(logger watermill.LoggerAdapter) queue.Settings {
	if c.Logger != nil {
		logger = c.Logger
	}
	const shortestPoll = 5 * time.Millisecond
	poll := orDefault(c.PollInterval, time.Second)
	shortest := orDefault(c.BackoffMin, time.Second)
	attempts := orDefault(c.MaxAttempts, 10)
	if attempts < 0 {
		attempts = math.MaxInt
	}
	return queue.Settings{
		Concurrency:  orDefault(c.Concurrency, 10),
		LeaseTime:    orDefault(c.LeaseTime, 30*time.Second),
		PollMin:      min(shortestPoll, poll),
		PollMax:      poll,
		MaxAttempts:  attempts,
		MaxStarts:    orDefault(c.MaxStarts, 3),
		BackoffMin:   shortest,
		BackoffMax:   max(shortest, orDefault(c.BackoffMax, 5*time.Minute)),
		CloseTimeout: orDefault(c.CloseTimeout, 30*time.Second),
		OnDead:       c.OnDead,
		Logger:       logger,
	}
}

// Dead is a message that is given up until an operator decides: a permanent error, MaxAttempts or MaxStarts.
type Dead = queue.Dead

// Subscriber is a message.Subscriber over the queue of a store; its topics are consumers, with their whole names. A
// message that it delivers is handled behind the inbox's middleware, in the transaction that its handler asks for
// (TxFromContext); a nack lets it wait for its next attempt.
type Subscriber struct{ inner *queue.Subscriber }

var _ message.Subscriber = (*Subscriber)(nil)

// NewSubscriber gives a subscriber over the queue, or an [*inbox.ConfigError].
func (q *Queue) NewSubscriber(config SubscriberConfig) (*Subscriber, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	return &Subscriber{q.inner.NewSubscriber(config.settings(q.backend.config.logger()))}, nil
}

// Subscribe gives the messages of a consumer. The channel closes when ctx ends or Close is called.
func (s *Subscriber) Subscribe(ctx context.Context, consumer string) (<-chan *message.Message, error) {
	return s.inner.Subscribe(ctx, consumer)
}

// Close stops taking messages, gives back those that no handler has, and waits for the others, at most for CloseTimeout.
func (s *Subscriber) Close() error { return s.inner.Close() }
