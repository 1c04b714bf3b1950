package main

import (
	"context"
	"database/sql"

	"github.com/ThreeDotsLabs/watermill/message"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox/pgxinbox"
)

// consumer is the name under which everyone remembers messages.
const consumer = "billing/charge"

// inboxPgx is a handler behind the middleware on native pgx.
func inboxPgx(ctx context.Context, a *arena) (handle, error) {
	return inboxWith(ctx, a, pgxinbox.Config{}, workPgx)
}

// inboxPgxAsking is the same without the memory of done keys: the database is asked about every duplicate.
func inboxPgxAsking(ctx context.Context, a *arena) (handle, error) {
	return inboxWith(ctx, a, pgxinbox.Config{DoneTTL: -1}, workPgx)
}

func inboxWith(ctx context.Context, a *arena, config pgxinbox.Config, work pgxWork) (handle, error) {
	store, err := pgxStore(ctx, a, config)
	if err != nil {
		return nil, err
	}
	return behind(store, pgxinbox.ConsumerHandler(work))
}

func pgxStore(ctx context.Context, a *arena, config pgxinbox.Config) (*pgxinbox.Store, error) {
	pool, err := a.pool(ctx)
	if err != nil {
		return nil, err
	}
	config.InitializeSchema = true
	return pgxinbox.NewStore(ctx, pool, config)
}

// inboxSQL is a handler behind the middleware on database/sql over pgx's own driver.
func inboxSQL(ctx context.Context, a *arena) (handle, error) {
	return inboxOn(ctx, a.db(), sqlinbox.Config{}, workSQL)
}

// inboxSQLAsking is the same without the memory of done keys.
func inboxSQLAsking(ctx context.Context, a *arena) (handle, error) {
	return inboxOn(ctx, a.db(), sqlinbox.Config{DoneTTL: -1}, workSQL)
}

// inboxOpenDB is a handler behind the middleware on database/sql over pgxinbox.OpenDB.
func inboxOpenDB(ctx context.Context, a *arena) (handle, error) {
	return inboxOn(ctx, a.claimDB(), sqlinbox.Config{}, workSQL)
}

// inboxOpenDBAsking is the same without the memory of done keys.
func inboxOpenDBAsking(ctx context.Context, a *arena) (handle, error) {
	return inboxOn(ctx, a.claimDB(), sqlinbox.Config{DoneTTL: -1}, workSQL)
}

func inboxOn(ctx context.Context, db *sql.DB, config sqlinbox.Config, work sqlWork) (handle, error) {
	store, err := sqlStore(ctx, db, config)
	if err != nil {
		return nil, err
	}
	return behind(store, sqlinbox.ConsumerHandler(work))
}

func sqlStore(ctx context.Context, db *sql.DB, config sqlinbox.Config) (*sqlinbox.Store, error) {
	config.Dialect, config.InitializeSchema = sqlinbox.PostgreSQL, true
	return sqlinbox.NewStore(ctx, db, config)
}

// behind puts a handler behind the middleware, without a router.
func behind(store inbox.Store, handler message.NoPublishHandlerFunc) (handle, error) {
	return behindInbox(store, inbox.Config{}, returnsNothing(handler))
}

func behindInbox(store inbox.Store, config inbox.Config, handler message.HandlerFunc) (handle, error) {
	config.Consumer = func(*message.Message) string { return consumer }
	in, err := inbox.New(store, config)
	if err != nil {
		return nil, err
	}
	next := in.Middleware(handler)
	return func(msg *message.Message) error {
		_, err := next(msg)
		return err
	}, nil
}

// returnsNothing is the handler as the router would call it.
func returnsNothing(handler message.NoPublishHandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) { return nil, handler(msg) }
}
