package main

import (
	"context"

	"github.com/ThreeDotsLabs/watermill/message"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox/pgxinbox"
)

// consumer is the name under which everyone remembers messages.
const consumer = "billing/charge"

// inboxPgx is a handler behind the middleware on native pgx.
func inboxPgx(ctx context.Context, a *arena) (handle, error) {
	store, err := pgxStore(ctx, a)
	if err != nil {
		return nil, err
	}
	return behind(store, pgxinbox.ConsumerHandler(workPgx))
}

// inboxSQL is a handler behind the middleware on database/sql.
func inboxSQL(ctx context.Context, a *arena) (handle, error) {
	store, err := sqlinbox.NewStore(ctx, a.db(), sqlinbox.Config{Dialect: sqlinbox.PostgreSQL, InitializeSchema: true})
	if err != nil {
		return nil, err
	}
	return behind(store, sqlinbox.ConsumerHandler(workSQL))
}

// behind puts a handler behind the middleware, without a router.
func behind(store inbox.Store, handler message.NoPublishHandlerFunc) (handle, error) {
	in, err := inbox.New(store, inbox.Config{Consumer: func(*message.Message) string { return consumer }})
	if err != nil {
		return nil, err
	}
	next := in.Middleware(func(msg *message.Message) ([]*message.Message, error) { return nil, handler(msg) })
	return func(msg *message.Message) error {
		_, err := next(msg)
		return err
	}, nil
}
