package main

import (
	"context"
	"time"

	wsql3 "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	wsql4 "github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/_examples/internal/demo"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox/outbox"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox/pgxinbox"
)

const pollInterval = 20 * time.Millisecond

// outgoing is one version of watermill-sql: the way out of the transaction, and the way on.
type outgoing struct {
	version, topic string
	outbox         inbox.Outbox
	publisher      *inbox.TxPublisher // the outbox for what a handler publishes itself
	subscriber     message.Subscriber
}

// openV3 pairs the inbox with watermill-sql/v3, whose own publisher and subscriber know database/sql only: on pgx its
// rows travel together with COMMIT.
func openV3(relay *pgxpool.Pool) (out outgoing, err error) {
	out = outgoing{version: "v3", topic: "charged_v3"}
	schema := wsql3.DefaultPostgreSQLSchema{}
	if out.outbox, err = outbox.New(outbox.Config{SchemaAdapter: schema, Logger: demo.Logger()}); err != nil {
		return out, err
	}
	if out.publisher, err = inbox.NewTxPublisher(out.outbox, inbox.TxPublisherConfig{}); err != nil {
		return out, err
	}
	sub, err := wsql3.NewSubscriber(stdlib.OpenDBFromPool(relay), wsql3.SubscriberConfig{
		SchemaAdapter: schema, OffsetsAdapter: wsql3.DefaultPostgreSQLOffsetsAdapter{}, PollInterval: pollInterval,
	}, demo.Logger())
	if err != nil {
		return out, err
	}
	out.subscriber = sub
	return out, sub.SubscribeInitialize(out.topic) // the tables: no publisher makes them inside a transaction
}

// openV4 needs no package for watermill-sql/v4: an outbox is a function.
func openV4(relay *pgxpool.Pool) (out outgoing, err error) {
	out = outgoing{version: "v4", topic: "charged_v4"}
	schema := wsql4.PostgreSQLQueueSchema{}
	out.outbox = func(ctx context.Context) (message.Publisher, error) {
		tx, err := pgxinbox.TxFromContext(ctx)
		if err != nil {
			return nil, err
		}
		return wsql4.NewPublisher(wsql4.TxFromPgx(tx), wsql4.PublisherConfig{SchemaAdapter: schema}, demo.Logger())
	}
	if out.publisher, err = inbox.NewTxPublisher(out.outbox, inbox.TxPublisherConfig{}); err != nil {
		return out, err
	}
	sub, err := wsql4.NewSubscriber(wsql4.BeginnerFromPgx(relay), wsql4.SubscriberConfig{
		SchemaAdapter: schema, OffsetsAdapter: wsql4.PostgreSQLQueueOffsetsAdapter{}, PollInterval: pollInterval,
	}, demo.Logger())
	if err != nil {
		return out, err
	}
	out.subscriber = sub
	return out, sub.SubscribeInitialize(out.topic)
}
