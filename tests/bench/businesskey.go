package main

import (
	"context"
	"database/sql"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/businesskey"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox/pgxinbox"
)

const aboutKeys = `Each message carries an operation id, which here is its own UUID, and the handler's one INSERT writes it. With Claims the
operation is claimed together with BEGIN and its message (inbox.Config.Claims), otherwise by a round trip of its own. A
repeated operation is asked for by a new message after it was done: the message is remembered, its handler is not called.`

func businessKeys(goal float64) []contender {
	return []contender{
		{name: "pgx, inbox", setup: itsOwn(keyless)},
		{name: "pgx, inbox, business key, Claims", against: "pgx, inbox", goal: goal, setup: itsOwn(keyed(withClaims))},
		{name: "pgx, inbox, business key", against: "pgx, inbox", setup: itsOwn(keyed(withoutClaims))},
		{name: "pgx, inbox, business key, Claims, repeated", against: "pgx, inbox", repeated: true, setup: repeated(keyed(withClaims))},
		{name: "pgx, inbox, business key, repeated", against: "pgx, inbox", repeated: true, setup: repeated(keyed(withoutClaims))},
		{name: "database/sql, inbox, pgxinbox.OpenDB", setup: itsOwn(keylessOpenDB)},
		{name: "database/sql, inbox, pgxinbox.OpenDB, business key, Claims", against: "database/sql, inbox, pgxinbox.OpenDB", setup: itsOwn(keyedOpenDB)},
	}
}

// claims tells whether the operation is claimed together with its message.
type claims bool

const (
	withClaims    claims = true
	withoutClaims claims = false
)

// keyless is a handler behind the inbox alone: nobody but the handler looks at the operation id.
func keyless(ctx context.Context, a *arena) (handle, error) {
	return inboxWith(ctx, a, pgxinbox.Config{}, workOperation)
}

func keylessOpenDB(ctx context.Context, a *arena) (handle, error) {
	return inboxOn(ctx, a.claimDB(), sqlinbox.Config{}, workOperationSQL)
}

// keyed is the same handler behind both layers.
func keyed(c claims) func(context.Context, *arena) (handle, error) {
	return keyedWith(pgxinbox.Config{}, c)
}

// keyedAsking is the same without the memory of done keys.
func keyedAsking(c claims) func(context.Context, *arena) (handle, error) {
	return keyedWith(pgxinbox.Config{DoneTTL: -1}, c)
}

func keyedWith(config pgxinbox.Config, c claims) func(context.Context, *arena) (handle, error) {
	return func(ctx context.Context, a *arena) (handle, error) {
		store, err := pgxStore(ctx, a, config)
		if err != nil {
			return nil, err
		}
		return behindKeys(store, c, pgxinbox.ConsumerHandler(workOperation))
	}
}

func keyedOpenDB(ctx context.Context, a *arena) (handle, error) {
	return keyedOn(ctx, a, sqlinbox.Config{})
}

func keyedOpenDBAsking(ctx context.Context, a *arena) (handle, error) {
	return keyedOn(ctx, a, sqlinbox.Config{DoneTTL: -1})
}

func keyedOn(ctx context.Context, a *arena, config sqlinbox.Config) (handle, error) {
	store, err := sqlStore(ctx, a.claimDB(), config)
	if err != nil {
		return nil, err
	}
	return behindKeys(store, withClaims, sqlinbox.ConsumerHandler(workOperationSQL))
}

// behindKeys puts a handler behind the inbox and, inside it, the business key.
func behindKeys(store inbox.OperationStore, c claims, handler message.NoPublishHandlerFunc) (handle, error) {
	keys, err := businesskey.New(store, businesskey.Config{})
	if err != nil {
		return nil, err
	}
	var config inbox.Config
	if c {
		config.Claims = keys.Claims
	}
	return behindInbox(store, config, keys.Middleware(returnsNothing(handler)))
}

// itsOwn lets each message ask for an operation of its own.
func itsOwn(setup func(context.Context, *arena) (handle, error)) func(context.Context, *arena) (handle, error) {
	return func(ctx context.Context, a *arena) (handle, error) {
		h, err := setup(ctx, a)
		if err != nil {
			return nil, err
		}
		return func(msg *message.Message) error { return ask(h, msg, msg.UUID) }, nil
	}
}

// repeated lets all messages ask for a few operations, one for each connection. None is asked for by two messages at once:
// that would be another matter.
func repeated(setup func(context.Context, *arena) (handle, error)) func(context.Context, *arena) (handle, error) {
	return func(ctx context.Context, a *arena) (handle, error) {
		h, err := setup(ctx, a)
		if err != nil {
			return nil, err
		}
		idle := make(chan string, a.conns)
		for range a.conns {
			idle <- inbox.NewUUID()
		}
		return func(msg *message.Message) error {
			operation := <-idle
			defer func() { idle <- operation }()
			return ask(h, msg, operation)
		}, nil
	}
}

func ask(h handle, msg *message.Message, operation string) error {
	msg.Metadata.Set(businesskey.OperationIDMetadataKey, operation)
	return h(msg)
}

// workOperation writes the operation, of which there is one effect, whichever message asked for it.
func workOperation(ctx context.Context, tx pgx.Tx, msg *message.Message) error {
	_, err := tx.Exec(ctx, insertEffect, msg.Metadata.Get(businesskey.OperationIDMetadataKey))
	return err
}

func workOperationSQL(ctx context.Context, tx *sql.Tx, msg *message.Message) error {
	_, err := tx.ExecContext(ctx, insertEffect, msg.Metadata.Get(businesskey.OperationIDMetadataKey))
	return err
}
