package inboxtest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/ThreeDotsLabs/watermill/message"
)

// DuplicateSubscriberConfig says how a DuplicateSubscriber delivers its copies.
type DuplicateSubscriberConfig struct {
	// Copies is how often each message is delivered. Defaults to 2.
	Copies int

	// Concurrent delivers all copies without waiting for an ack in between, so that a router
	// handles them at the same time. Defaults to one copy after the other.
	Concurrent bool
}

func (c *DuplicateSubscriberConfig) setDefaults() {
	if c.Copies == 0 {
		c.Copies = 2
	}
}

// Validate returns an error that names what is wrong with the configuration.
func (c DuplicateSubscriberConfig) Validate() error {
	if c.Copies < 0 {
		return fmt.Errorf("inboxtest: Copies is %d, want at least 1", c.Copies)
	}
	return nil
}

// DuplicateSubscriber is a subscriber that delivers every message of another one several
// times, as brokers do on a bad day.
//
// Each copy has its own payload, metadata and context, which derives from the message's and
// ends at the copy's ack or nack. The message is acked when all its copies are. If a copy is
// nacked the message is nacked, and with it comes back as a whole: at once when the copies come
// one after the other, when all of them are acked or nacked if they are concurrent. A copy that
// is neither when its context ends counts as nacked.
type DuplicateSubscriber struct {
	sub    message.Subscriber
	config DuplicateSubscriberConfig

	mu      sync.Mutex
	closed  bool
	closing chan struct{}
	wg      sync.WaitGroup
}

// NewDuplicateSubscriber decorates sub, which the new subscriber closes when it is closed.
func NewDuplicateSubscriber(sub message.Subscriber, config DuplicateSubscriberConfig) (*DuplicateSubscriber, error) {
	if sub == nil {
		return nil, errors.New("inboxtest: subscriber is nil")
	}
	config.setDefaults()
	if err := config.Validate(); err != nil {
		return nil, err
	}
	return &DuplicateSubscriber{sub: sub, config: config, closing: make(chan struct{})}, nil
}

// Subscribe subscribes to the topic.
func (s *DuplicateSubscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	in, err := s.sub.Subscribe(ctx, topic)
	if err != nil {
		return nil, err
	}
	out := make(chan *message.Message)

	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		close(out)
		return out, nil
	}
	s.wg.Go(func() { s.forward(ctx, in, out) })
	return out, nil
}

// SubscribeInitialize passes the call on to the decorated subscriber, if it wants it.
func (s *DuplicateSubscriber) SubscribeInitialize(topic string) error {
	if sub, ok := s.sub.(message.SubscribeInitializer); ok {
		return sub.SubscribeInitialize(topic)
	}
	return nil
}

// Close closes the decorated subscriber first, so that it may wait for messages in flight as
// it is used to, and then nacks what has not been handled.
func (s *DuplicateSubscriber) Close() error {
	err := s.sub.Close()

	s.mu.Lock()
	if !s.closed {
		s.closed = true
		close(s.closing)
	}
	s.mu.Unlock()

	s.wg.Wait()
	return err
}

// forward delivers the first copy of each message itself, to keep the order, and leaves the
// rest to a goroutine: the decorated subscriber may send the next message before this one is
// acked.
func (s *DuplicateSubscriber) forward(ctx context.Context, in <-chan *message.Message, out chan *message.Message) {
	defer close(out)
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		var msg *message.Message
		select {
		case m, ok := <-in:
			if !ok {
				return
			}
			msg = m
		case <-s.closing:
			return
		}
		d := delivery{msg: msg, out: out, closing: s.closing, config: s.config}
		first := d.send(ctx)
		wg.Go(func() { d.finish(ctx, first) })
	}
}

// delivery is the delivery of one message. The context that its methods take is that of the
// subscription, not the message's own.
type delivery struct {
	msg     *message.Message
	out     chan<- *message.Message
	closing <-chan struct{} // the subscriber's end
	config  DuplicateSubscriberConfig
}

// sentCopy is a copy on its way. Its context is that of the moment of sending: whoever has
// received the copy may set another one in it, as the router does.
type sentCopy struct {
	*message.Message
	ended  <-chan struct{}
	cancel context.CancelFunc
}

// send delivers a copy. A copy that nobody takes before the end comes back with its context
// cancelled.
func (d delivery) send(ctx context.Context) sentCopy {
	copyCtx, cancel := context.WithCancel(d.msg.Context())
	c := sentCopy{d.msg.Copy(), copyCtx.Done(), cancel}
	c.Payload = slices.Clone(d.msg.Payload)
	c.SetContext(copyCtx) //nolint:contextcheck // a message carries its own
	select {
	case d.out <- c.Message:
	case <-c.ended:
	case <-ctx.Done():
		cancel()
	case <-d.closing:
		cancel()
	}
	return c
}

// finish delivers the copies behind the first and acks or nacks the message.
func (d delivery) finish(ctx context.Context, first sentCopy) {
	handle := d.sequential
	if d.config.Concurrent {
		handle = d.concurrent
	}
	if handle(ctx, first) {
		d.msg.Ack()
	} else {
		d.msg.Nack()
	}
}

func (d delivery) sequential(ctx context.Context, first sentCopy) (acked bool) {
	acked = d.wait(ctx, first)
	for n := 1; n < d.config.Copies && acked; n++ {
		acked = d.wait(ctx, d.send(ctx))
	}
	return acked
}

func (d delivery) concurrent(ctx context.Context, first sentCopy) (acked bool) {
	var wg sync.WaitGroup
	var nacked atomic.Bool
	follow := func(c sentCopy) {
		wg.Go(func() {
			if !d.wait(ctx, c) {
				nacked.Store(true)
			}
		})
	}
	follow(first)
	for n := 1; n < d.config.Copies; n++ {
		follow(d.send(ctx))
	}
	wg.Wait()
	return !nacked.Load()
}

// wait waits for the end of a copy and tells whether it was acked.
func (d delivery) wait(ctx context.Context, c sentCopy) bool {
	defer c.cancel()
	select {
	case <-c.Acked():
	case <-c.Nacked():
	case <-c.ended:
	case <-ctx.Done():
	case <-d.closing:
	}
	select {
	case <-c.Acked():
		return true
	default:
		return false
	}
}
