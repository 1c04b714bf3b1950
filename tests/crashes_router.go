package tests

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/stretchr/testify/require"

	inbox "github.com/watermill-contrib/watermill-inbox"
)

const crashTopic = "orders"

// host is a router on a gochannel with one handler behind an inbox, and a look at what becomes of its messages.
type host struct {
	*message.Router
	pubSub *gochannel.GoChannel
	logs   *logs
	poison poison

	mu         sync.Mutex
	deliveries []*message.Message
}

// startHost runs a router whose handler is behind the given middlewares and, as the innermost, the rig's inbox.
func startHost(t testing.TB, r *rig, h *host, handler message.HandlerFunc, outer ...message.HandlerMiddleware) {
	t.Helper()
	h.logs = &logs{}
	h.pubSub = gochannel.NewGoChannel(gochannel.Config{}, nil)
	var err error
	h.Router, err = message.NewRouter(message.RouterConfig{CloseTimeout: patience}, h.logs)
	require.NoError(t, err)
	h.AddMiddleware(h.watch)
	h.AddMiddleware(outer...)
	h.AddMiddleware(r.Middleware)
	h.AddConsumerHandler(consumer, crashTopic, h.pubSub, func(msg *message.Message) error {
		_, err := handler(msg)
		return err
	})
	ran := make(chan error, 1)
	go func() { ran <- h.Run(context.Background()) }()
	t.Cleanup(func() {
		_ = h.Close()
		require.NoError(t, <-ran)
	})
	within(t, patience, "start of the router", func() { <-h.Running() })
}

// documentedOrder gives the middlewares around an inbox in the order that the documentation tells.
func (h *host) documentedOrder(t testing.TB) []message.HandlerMiddleware {
	t.Helper()
	poisonQueue, err := middleware.PoisonQueueWithFilter(&h.poison, "poison", func(err error) bool { return !inbox.IsTransient(err) })
	require.NoError(t, err)
	retry := middleware.Retry{
		MaxRetries: 2, InitialInterval: 20 * time.Millisecond, Multiplier: 2, ResetContextOnRetry: true,
		ShouldRetry: func(p middleware.RetryParams) bool { return !inbox.IsPermanent(p.Err) },
	}
	return []message.HandlerMiddleware{poisonQueue, retry.Middleware, middleware.Recoverer}
}

// watch is the outermost middleware: it notes each delivery.
func (h *host) watch(next message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		h.mu.Lock()
		h.deliveries = append(h.deliveries, msg)
		h.mu.Unlock()
		msg.SetContext(context.WithValue(msg.Context(), subscribersContext{}, msg.Context()))
		return next(msg)
	}
}

type subscribersContext struct{}

// untilCancelled waits until the subscriber has cancelled the message that ctx came with: ctx itself may go on.
func untilCancelled(ctx context.Context) {
	<-ctx.Value(subscribersContext{}).(context.Context).Done()
}

// delivery gives the n-th message that came from the subscriber, counted from 0.
func (h *host) delivery(n int) *message.Message {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.deliveries[n]
}

func (h *host) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.deliveries)
}

func (h *host) publish(t testing.TB, messages ...*message.Message) {
	t.Helper()
	require.NoError(t, h.pubSub.Publish(crashTopic, messages...))
}

// requireQuiet asserts that the router had nothing to complain about and gave no message up.
func (h *host) requireQuiet(t testing.TB) {
	t.Helper()
	require.Empty(t, h.logs.at("ERROR"), "no ERROR line")
	require.Empty(t, h.poison.all(), "nothing in the poison queue")
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// poison collects what is published to a poison queue.
type poison struct {
	mu       sync.Mutex
	messages []*message.Message
}

func (p *poison) Publish(_ string, messages ...*message.Message) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.messages = append(p.messages, messages...)
	return nil
}

func (p *poison) Close() error { return nil }

func (p *poison) all() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	reasons := []string{}
	for _, msg := range p.messages {
		reasons = append(reasons, msg.Metadata.Get(middleware.ReasonForPoisonedKey))
	}
	return reasons
}
