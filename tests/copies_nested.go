package tests

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/stretchr/testify/require"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox"
)

// a12Twice adds the middleware to the router and to its handler.
func (s *suite) a12Twice(t *testing.T) {
	r := newRouterRig(t, s.open(t, Options{}))
	broker := newBroker(t)
	r.route(t, func(router *message.Router) {
		router.AddMiddleware(r.Middleware)
		router.AddConsumerHandler(consumer, ordersTopic, twice(t, broker), consume(r.writes("pay"))).AddMiddleware(r.Middleware)
	})
	for range 3 {
		require.NoError(t, publish(broker, newMessage("pay 10")).end(t))
	}
	require.Equal(t, 3, r.Count(t, "pay"))
	require.Equal(t, 3, r.Rows(t))
	r.told(t, map[inbox.Outcome]int{inbox.OutcomeProcessed: 3, inbox.OutcomeDuplicate: 3})
	warnings := 0
	for _, line := range r.logs.at("INFO") {
		if strings.Contains(line.text, "in this handler's chain twice") {
			warnings++
			require.Equal(t, consumer, line.fields["handler_name"])
		}
	}
	require.Equal(t, 1, warnings, "said once")
}

// nested passes a message through an inbox whose handler is behind another inbox's middleware, and checks that neither
// had an effect.
func nested(t *testing.T, outer, inner *rig, middleware message.HandlerMiddleware) {
	t.Helper()
	chain := outer.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		if err := outer.Write(msg.Context(), "pay"); err != nil {
			return nil, err
		}
		return middleware(inner.writes("pay"))(msg)
	})
	d := &inHand{done: make(chan struct{})}
	go func() {
		defer close(d.done)
		_, d.err = chain(newMessage("pay 10"))
	}()
	err := d.end(t)
	require.ErrorIs(t, err, inbox.ErrNested)
	require.True(t, inbox.IsTransient(err), "the message is not at fault")
	for _, r := range []*rig{outer, inner} {
		require.Equal(t, 0, r.Total(t))
		require.Equal(t, 0, r.Rows(t))
		r.requireIdle(t)
	}
}

func (s *suite) a12Consumer(t *testing.T) {
	r := s.rig(t, Options{}, inbox.Config{})
	nested(t, r, r, r.As("mail"))
	r.told(t, map[inbox.Outcome]int{inbox.OutcomeFailed: 2})
}

// a12Message handles another message inside a handler, with the handler's context.
func (s *suite) a12Message(t *testing.T) {
	r := s.rig(t, Options{}, inbox.Config{})
	other := newMessage("pay 20")
	nested(t, r, r, func(next message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			other.SetContext(msg.Context())
			return r.Middleware(next)(other)
		}
	})
	require.NoError(t, r.handle(other.Copy(), r.writes("pay")), "on its own it is handled")
}

// a12Store has a second store inside the first: of another schema or file, and of the same one.
func (s *suite) a12Store(t *testing.T) {
	outer, elsewhere := s.rig(t, Options{}, inbox.Config{}), s.rig(t, Options{}, inbox.Config{})
	nested(t, outer, elsewhere, elsewhere.Middleware)

	same := *outer.Env
	var err error
	same.Store, err = outer.Open(context.Background(), sqlinbox.Config{})
	require.NoError(t, err)
	inner := newRig(t, &same, inbox.Config{})
	nested(t, outer, inner, inner.Middleware)
}

// a12Detached has a handler pass its own message to the inbox again, in a context that knows nothing of the first.
func (s *suite) a12Detached(t *testing.T) {
	r := s.rig(t, Options{Config: sqlinbox.Config{InFlightWait: 50 * time.Millisecond}}, inbox.Config{})
	var inner error
	outer := r.start(newMessage("pay 10"), func(msg *message.Message) ([]*message.Message, error) {
		inner = r.handle(msg.Copy(), r.writes("pay"))
		return nil, r.Write(msg.Context(), "pay")
	})
	require.NoError(t, outer.end(t))
	require.ErrorIs(t, inner, inbox.ErrInFlight, "never a hang")
	r.processedOnce(t)
}

// a12Preserved has a handler publish a message with its own context through a broker that hands it on: what the
// context carries of the first message is over when the second is handled.
func (s *suite) a12Preserved(t *testing.T) {
	r := newRouterRig(t, s.open(t, Options{}))
	broker := gochannel.NewGoChannel(gochannel.Config{PreserveContext: true}, nil)
	over, acked := make(chan struct{}), make(chan struct{})
	after := func(signal chan struct{}) message.HandlerMiddleware {
		return func(next message.HandlerFunc) message.HandlerFunc {
			return func(msg *message.Message) ([]*message.Message, error) {
				produced, err := next(msg)
				if err == nil {
					close(signal)
				}
				return produced, err
			}
		}
	}
	wait := func(next message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			<-over
			return next(msg)
		}
	}
	r.route(t, func(router *message.Router) {
		router.AddConsumerHandler("charge", ordersTopic, broker, func(msg *message.Message) error {
			if err := r.Write(msg.Context(), "charge"); err != nil {
				return err
			}
			return broker.Publish("charges", message.NewMessageWithContext(msg.Context(), inbox.NewUUID(), nil))
		}).AddMiddleware(after(over))
		router.AddConsumerHandler("mail", "charges", broker, consume(r.writes("mail"))).AddMiddleware(wait, after(acked))
		router.AddMiddleware(r.Middleware) // inside of the handlers' own, which were added before
	})
	require.NoError(t, broker.Publish(ordersTopic, newMessage("pay 10")))
	await(t, acked, "the message that was published with the handler's context")
	require.Equal(t, 1, r.Count(t, "charge"))
	require.Equal(t, 1, r.Count(t, "mail"))
	r.told(t, map[inbox.Outcome]int{inbox.OutcomeProcessed: 2})
}
