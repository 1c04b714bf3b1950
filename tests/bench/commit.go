package main

import (
	"context"
	"fmt"

	wsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox/outbox"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox/pgxinbox"
)

// inboxAtCommit is a handler whose write travels with COMMIT.
func inboxAtCommit(ctx context.Context, a *arena) (handle, error) {
	store, err := pgxStore(ctx, a, pgxinbox.Config{})
	if err != nil {
		return nil, err
	}
	return behind(store, func(msg *message.Message) error {
		return pgxinbox.ExecAtCommit(msg.Context(), insertEffect, msg.UUID)
	})
}

// outboxMessages is how many messages a handler of inboxOutbox publishes.
const outboxMessages = 5

// inboxOutbox is a handler that also writes outgoing messages into watermill-sql's table, with COMMIT.
func inboxOutbox(ctx context.Context, a *arena) (handle, error) {
	store, err := pgxStore(ctx, a, pgxinbox.Config{})
	if err != nil {
		return nil, err
	}
	schema := wsql.DefaultPostgreSQLSchema{}
	pool, err := a.pool(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := pool.Exec(ctx, schema.SchemaInitializingQueries("charged")[0].Query); err != nil {
		return nil, err
	}
	out, err := outbox.New(outbox.Config{SchemaAdapter: schema})
	if err != nil {
		return nil, err
	}
	publisher, err := inbox.NewTxPublisher(out, inbox.TxPublisherConfig{})
	if err != nil {
		return nil, err
	}
	return behind(store, func(msg *message.Message) error {
		tx, err := pgxinbox.TxFromContext(msg.Context())
		if err != nil {
			return err
		}
		if err := workPgx(msg.Context(), tx, msg); err != nil {
			return err
		}
		events := make([]*message.Message, outboxMessages)
		for i := range events {
			events[i] = message.NewMessage(inbox.NewUUID(), []byte(fmt.Sprintf(`{"line":%d}`, i)))
		}
		events[0].SetContext(msg.Context())
		return publisher.Publish("charged", events...)
	})
}
