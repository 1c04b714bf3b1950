package main

import (
	"database/sql"
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/components/cqrs"
	"github.com/ThreeDotsLabs/watermill/message"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/inboxtest"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox/outbox"
)

const eventsTopic = "events"

var (
	marshaler = cqrs.JSONMarshaler{GenerateName: cqrs.StructName}
	schema    = wsql.DefaultPostgreSQLSchema{}
)

// newEventBus gives an EventBus for handlers: it publishes into the transaction in the context that it is given.
func newEventBus() (*cqrs.EventBus, error) {
	out, err := outbox.New(outbox.Config{SchemaAdapter: schema})
	if err != nil {
		return nil, err
	}
	publisher, err := inbox.NewTxPublisher(out, inbox.TxPublisherConfig{})
	if err != nil {
		return nil, err
	}
	return cqrs.NewEventBusWithConfig(publisher, cqrs.EventBusConfig{
		GeneratePublishTopic: func(cqrs.GenerateEventPublishTopicParams) (string, error) { return eventsTopic, nil },
		Marshaler:            marshaler,
	})
}

// addHandlers adds the handlers to a router that has the inbox: commands come from the broker, events from the table of
// watermill-sql, both of them twice.
func addHandlers(router *message.Router, broker message.Subscriber, relay *sql.DB) error {
	commands, commandsErr := cqrs.NewCommandProcessorWithConfig(router, cqrs.CommandProcessorConfig{
		GenerateSubscribeTopic: func(p cqrs.CommandProcessorGenerateSubscribeTopicParams) (string, error) {
			return p.CommandName, nil
		},
		SubscriberConstructor: func(cqrs.CommandProcessorSubscriberConstructorParams) (message.Subscriber, error) {
			return inboxtest.NewDuplicateSubscriber(broker, inboxtest.DuplicateSubscriberConfig{})
		},
		Marshaler: marshaler,
	})
	events, eventsErr := cqrs.NewEventProcessorWithConfig(router, cqrs.EventProcessorConfig{
		GenerateSubscribeTopic: func(cqrs.EventProcessorGenerateSubscribeTopicParams) (string, error) {
			return eventsTopic, nil
		},
		SubscriberConstructor: func(p cqrs.EventProcessorSubscriberConstructorParams) (message.Subscriber, error) {
			return eventsFor(p.HandlerName, relay)
		},
		AckOnUnknownEvent: true,
		Marshaler:         marshaler,
	})
	groups, groupsErr := cqrs.NewEventGroupProcessorWithConfig(router, cqrs.EventGroupProcessorConfig{
		GenerateSubscribeTopic: func(cqrs.EventGroupProcessorGenerateSubscribeTopicParams) (string, error) {
			return eventsTopic, nil
		},
		SubscriberConstructor: func(p cqrs.EventGroupProcessorSubscriberConstructorParams) (message.Subscriber, error) {
			return eventsFor(p.EventGroupName, relay)
		},
		AckOnUnknownEvent: true,
		Marshaler:         marshaler,
	})
	bus, busErr := newEventBus()
	if err := errors.Join(commandsErr, eventsErr, groupsErr, busErr); err != nil {
		return err
	}
	h := &handlers{events: bus}
	return errors.Join(
		commands.AddHandlers(cqrs.NewCommandHandler("PayOrder", h.payOrder)),
		events.AddHandlers(cqrs.NewEventHandler("SendReceipt", h.sendReceipt)),
		groups.AddHandlersGroup("Reports", cqrs.NewGroupEventHandler(h.sum), cqrs.NewGroupEventHandler(h.count)),
	)
}

// eventsFor reads the table of events for one consumer group. It makes the table when the router subscribes, before the
// first command: a publisher in a transaction never does.
func eventsFor(group string, relay *sql.DB) (message.Subscriber, error) {
	sub, err := wsql.NewSubscriber(relay, wsql.SubscriberConfig{
		ConsumerGroup:    group,
		SchemaAdapter:    schema,
		OffsetsAdapter:   wsql.DefaultPostgreSQLOffsetsAdapter{},
		InitializeSchema: true,
		PollInterval:     20 * time.Millisecond,
		ResendInterval:   20 * time.Millisecond,
	}, watermill.NopLogger{}) // its last line would be the query that Close breaks off
	if err != nil {
		return nil, err
	}
	return inboxtest.NewDuplicateSubscriber(sub, inboxtest.DuplicateSubscriberConfig{})
}
