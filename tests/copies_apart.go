package tests

import (
	"context"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox"
)

// a7Handlers has two handlers of one router on one topic, which get the same messages, each of them twice.
func (s *suite) a7Handlers(t *testing.T) {
	r := newRouterRig(t, s.open(t, Options{}))
	broker := newBroker(t)
	r.route(t, func(router *message.Router) {
		router.AddMiddleware(r.Middleware)
		for _, name := range []string{"charge", "mail"} {
			router.AddConsumerHandler(name, ordersTopic, twice(t, broker), consume(r.writes(name)))
		}
	})
	msg := newMessage("order 42")
	for range 2 {
		require.NoError(t, publish(broker, msg.Copy()).end(t))
	}
	require.Equal(t, 1, r.Count(t, "charge"))
	require.Equal(t, 1, r.Count(t, "mail"))
	require.Equal(t, 2, r.Rows(t))
	r.told(t, map[inbox.Outcome]int{inbox.OutcomeProcessed: 2, inbox.OutcomeDuplicate: 6})
}

// a7Namespaces has two services with a handler of the same name on one schema.
func (s *suite) a7Namespaces(t *testing.T) {
	env := s.open(t, Options{})
	msg := newMessage("order 42")
	for _, namespace := range []string{"", "billing", "shipping"} {
		in, err := inbox.New(env.Store, inbox.Config{Namespace: namespace})
		require.NoError(t, err)
		handle := in.As("created")(func(msg *message.Message) ([]*message.Message, error) {
			return nil, env.Write(msg.Context(), "of "+namespace)
		})
		for range 2 {
			_, err := handle(msg.Copy())
			require.NoError(t, err)
		}
		require.Equal(t, 1, env.Count(t, "of "+namespace))
	}
	require.Equal(t, 3, env.Rows(t))
}

// a7Schemas has two tenants, each with a schema (or a file) of its own: neither sees the other, also not in flight.
func (s *suite) a7Schemas(t *testing.T) {
	config := sqlinbox.Config{InFlightWait: -1}
	one := s.rig(t, Options{Config: config}, inbox.Config{})
	other := s.rig(t, Options{Config: config}, inbox.Config{})
	msg := newMessage("pay 10")
	stop := newGate(t)
	first := one.start(msg.Copy(), stop.after(one.writes("pay")))
	stop.wait(t)
	require.NoError(t, other.start(msg.Copy(), other.writes("pay")).end(t))
	stop.open()
	require.NoError(t, first.end(t))
	for _, r := range []*rig{one, other} {
		require.NoError(t, r.handle(msg.Copy(), r.writes("pay")))
		r.processedOnce(t)
		r.told(t, map[inbox.Outcome]int{inbox.OutcomeProcessed: 1, inbox.OutcomeDuplicate: 1})
	}
}

// a7Prefixes has two inboxes side by side in one schema or file.
func (s *suite) a7Prefixes(t *testing.T) {
	config := sqlinbox.Config{InFlightWait: -1}
	one := s.rig(t, Options{Config: config}, inbox.Config{})
	beside := *one.Env
	var err error
	beside.Store, err = one.Open(context.Background(), sqlinbox.Config{InFlightWait: -1, TablePrefix: "beside", InitializeSchema: true})
	require.NoError(t, err)
	other := newRig(t, &beside, inbox.Config{})

	msg := newMessage("pay 10")
	stop := newGate(t)
	first := one.start(msg.Copy(), stop.after(one.writes("pay")))
	stop.wait(t)
	if !s.Server { // one writer for the whole file
		stop.open()
		require.NoError(t, first.end(t))
	}
	require.NoError(t, other.start(msg.Copy(), other.writes("pay beside")).end(t))
	stop.open()
	require.NoError(t, first.end(t))
	for _, r := range []*rig{one, other} {
		require.NoError(t, r.handle(msg.Copy(), r.writes("pay again")))
		r.told(t, map[inbox.Outcome]int{inbox.OutcomeProcessed: 1, inbox.OutcomeDuplicate: 1})
	}
	require.Equal(t, 1, one.Count(t, "pay"))
	require.Equal(t, 1, one.Count(t, "pay beside"))
	require.Equal(t, 2, one.Total(t))
}
