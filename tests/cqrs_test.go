package tests_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/components/cqrs"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/stretchr/testify/require"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/inboxtest"
	"github.com/watermill-contrib/watermill-inbox/tests"
)

type (
	payOrder  struct{ ID string }
	orderPaid struct{ ID string }
	unknown   struct{ ID string }
)

// cqrsApp is a router with the inbox on a broker that delivers every message twice.
type cqrsApp struct {
	env    *tests.Env
	broker *gochannel.GoChannel
	sub    *inboxtest.DuplicateSubscriber
	router *message.Router
	events chan inbox.Event
}

var cqrsMarshaler = cqrs.JSONMarshaler{GenerateName: cqrs.StructName}

func newCQRSApp(t *testing.T, env *tests.Env, config inbox.Config) *cqrsApp {
	app := &cqrsApp{env: env, broker: gochannel.NewGoChannel(gochannel.Config{OutputChannelBuffer: 16}, nil), events: make(chan inbox.Event, 64)}
	var err error
	app.sub, err = inboxtest.NewDuplicateSubscriber(app.broker, inboxtest.DuplicateSubscriberConfig{})
	require.NoError(t, err)
	app.router, err = message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	require.NoError(t, err)
	config.Observer = func(_ context.Context, e inbox.Event) { app.events <- e }
	in, err := inbox.New(env.Store, config)
	require.NoError(t, err)
	app.router.AddMiddleware(in.Middleware)
	return app
}

func (app *cqrsApp) run(t *testing.T) {
	go func() { _ = app.router.Run(context.Background()) }()
	t.Cleanup(func() { _ = app.router.Close() })
	<-app.router.Running()
}

// send publishes a command or event as its bus would, under one UUID.
func (app *cqrsApp) send(t *testing.T, v any) {
	msg, err := cqrsMarshaler.Marshal(v)
	require.NoError(t, err)
	require.NoError(t, app.broker.Publish(cqrsMarshaler.Name(v), msg))
}

// await waits for n deliveries and counts their outcomes.
func (app *cqrsApp) await(t *testing.T, n int) map[inbox.Outcome]int {
	counts := map[inbox.Outcome]int{}
	for range n {
		select {
		case e := <-app.events:
			counts[e.Outcome]++
		case <-time.After(30 * time.Second):
			t.Fatalf("only %v of %d deliveries", counts, n)
		}
	}
	return counts
}

func forEachColumn(t *testing.T, run func(t *testing.T, env *tests.Env)) {
	for _, c := range columns() {
		t.Run(c.features.Name, func(t *testing.T) {
			t.Parallel()
			run(t, c.harness(t, tests.Options{}))
		})
	}
}

// TestCQRS_CommandAndEvents sends a command twice; its handler publishes an event through an EventBus inside the
// transaction, and the event has two handlers: each of the three has its effect once.
func TestCQRS_CommandAndEvents(t *testing.T) {
	t.Parallel()
	forEachColumn(t, func(t *testing.T, env *tests.Env) {
		app := newCQRSApp(t, env, inbox.Config{})
		txPublisher, err := inbox.NewTxPublisher(env.Outbox, inbox.TxPublisherConfig{})
		require.NoError(t, err)
		bus, err := cqrs.NewEventBusWithConfig(txPublisher, cqrs.EventBusConfig{
			GeneratePublishTopic: func(cqrs.GenerateEventPublishTopicParams) (string, error) { return "charged", nil },
			Marshaler:            cqrsMarshaler,
		})
		require.NoError(t, err)

		commands, err := cqrs.NewCommandProcessorWithConfig(app.router, cqrs.CommandProcessorConfig{
			GenerateSubscribeTopic: func(p cqrs.CommandProcessorGenerateSubscribeTopicParams) (string, error) {
				return p.CommandName, nil
			},
			SubscriberConstructor: func(cqrs.CommandProcessorSubscriberConstructorParams) (message.Subscriber, error) {
				return app.sub, nil
			},
			Marshaler: cqrsMarshaler,
		})
		require.NoError(t, err)
		var failed atomic.Bool
		require.NoError(t, commands.AddHandlers(cqrs.NewCommandHandler("PayOrder", func(ctx context.Context, command *payOrder) error {
			if err := env.Write(ctx, "pay-"+command.ID); err != nil {
				return err
			}
			if err := bus.Publish(ctx, orderPaid{command.ID}); err != nil {
				return err
			}
			if failed.CompareAndSwap(false, true) {
				return errors.New("fails once, behind its writes")
			}
			return nil
		})))
		events, err := cqrs.NewEventProcessorWithConfig(app.router, cqrs.EventProcessorConfig{
			GenerateSubscribeTopic: func(p cqrs.EventProcessorGenerateSubscribeTopicParams) (string, error) { return p.EventName, nil },
			SubscriberConstructor: func(cqrs.EventProcessorSubscriberConstructorParams) (message.Subscriber, error) {
				return app.sub, nil
			},
			Marshaler: cqrsMarshaler,
		})
		require.NoError(t, err)
		for _, name := range []string{"SendReceipt", "BookRevenue"} {
			require.NoError(t, events.AddHandlers(cqrs.NewEventHandler(name, func(ctx context.Context, event *orderPaid) error {
				return env.Write(ctx, name+"-"+event.ID)
			})))
		}
		app.run(t)

		app.send(t, payOrder{"1"})
		// A copy fails and nacks the whole delivery, which then comes twice again.
		counts := app.await(t, 3)
		require.Equal(t, map[inbox.Outcome]int{inbox.OutcomeFailed: 1, inbox.OutcomeProcessed: 1, inbox.OutcomeDuplicate: 1}, counts)
		require.Equal(t, 1, env.Count(t, "pay-1"))
		require.Len(t, env.Outgoing(t), 1, "the event of the failed attempt was rolled back with it")

		app.send(t, orderPaid{"1"}) // as the outbox's relay would
		counts = app.await(t, 4)
		require.Equal(t, map[inbox.Outcome]int{inbox.OutcomeProcessed: 2, inbox.OutcomeDuplicate: 2}, counts)
		require.Equal(t, 1, env.Count(t, "SendReceipt-1"))
		require.Equal(t, 1, env.Count(t, "BookRevenue-1"))
		require.Equal(t, 3, env.Rows(t), "each handler has a memory of its own")
	})
}

// TestCQRS_Group has a group of handlers on one event: one row, one transaction, all or nothing.
func TestCQRS_Group(t *testing.T) {
	t.Parallel()
	forEachColumn(t, func(t *testing.T, env *tests.Env) {
		app := newCQRSApp(t, env, inbox.Config{Bypass: inbox.BypassUnknown(cqrsMarshaler, cqrsMarshaler.Name(orderPaid{}))})
		group, err := cqrs.NewEventGroupProcessorWithConfig(app.router, cqrs.EventGroupProcessorConfig{
			GenerateSubscribeTopic: func(cqrs.EventGroupProcessorGenerateSubscribeTopicParams) (string, error) { return "events", nil },
			SubscriberConstructor: func(cqrs.EventGroupProcessorSubscriberConstructorParams) (message.Subscriber, error) {
				return app.sub, nil
			},
			AckOnUnknownEvent: true,
			Marshaler:         cqrsMarshaler,
		})
		require.NoError(t, err)
		var failed atomic.Bool
		require.NoError(t, group.AddHandlersGroup("billing",
			cqrs.NewGroupEventHandler(func(ctx context.Context, event *orderPaid) error {
				return env.Write(ctx, "first-"+event.ID)
			}),
			cqrs.NewGroupEventHandler(func(ctx context.Context, event *orderPaid) error {
				if err := env.Write(ctx, "second-"+event.ID); err != nil {
					return err
				}
				if failed.CompareAndSwap(false, true) {
					return errors.New("the second of the group fails once")
				}
				return nil
			}),
		))
		app.run(t)

		send := func(v any) {
			msg, err := cqrsMarshaler.Marshal(v)
			require.NoError(t, err)
			require.NoError(t, app.broker.Publish("events", msg))
		}
		send(orderPaid{"1"})
		counts := app.await(t, 3)
		require.Equal(t, map[inbox.Outcome]int{inbox.OutcomeFailed: 1, inbox.OutcomeProcessed: 1, inbox.OutcomeDuplicate: 1}, counts)
		require.Equal(t, 1, env.Count(t, "first-1"), "the failed attempt left nothing of the first handler either")
		require.Equal(t, 1, env.Count(t, "second-1"))
		require.Equal(t, 1, env.Rows(t), "one row for the group")

		send(unknown{"2"})
		require.Equal(t, map[inbox.Outcome]int{inbox.OutcomeBypassed: 2}, app.await(t, 2), "an unknown event leaves no row")
		require.Equal(t, 1, env.Rows(t))
	})
}
