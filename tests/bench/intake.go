package main

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox/pgxinbox"
)

const (
	aboutIntake = `Each caller stores one message of 1 KiB for later, in the inbox's tables, and goes on when it is committed. Row by row is
begin, INSERT into the memory, INSERT into the queue, commit; Publish is the inbox's own statement with one row, sent in one
round trip; the intake joins the callers that come at the same time into one such statement. Nobody handles the messages.`
	aboutIntakeAlone = aboutIntake + `
One caller is joined with nobody. The ratio of the rates is that of its waiting times turned round: 2 is half the time.`
)

func intakes(goal float64) []contender {
	return []contender{
		{name: "pgx, row by row", counts: countStored, setup: ofOneKiB(intakeRowByRow)},
		{name: "pgx, Publish", against: "pgx, row by row", counts: countStored, setup: ofOneKiB(intakePublish)},
		{name: "pgx, intake", against: "pgx, row by row", goal: goal, counts: countStored, setup: ofOneKiB(intakeJoined)},
		{name: "database/sql, intake, pgxinbox.OpenDB", against: "pgx, row by row", counts: countStored, setup: ofOneKiB(intakeOpenDB)},
	}
}

// countStored counts what was stored, where nothing is handled.
const countStored = `
SELECT count(*), count(DISTINCT message_id)
FROM watermill_inbox_queue JOIN watermill_inbox USING (key) WHERE processed_at IS NULL`

// ofOneKiB gives the messages a payload of that size.
func ofOneKiB(setup func(context.Context, *arena) (handle, error)) func(context.Context, *arena) (handle, error) {
	payload := make([]byte, 1024)
	for i := range payload {
		payload[i] = byte('a' + i%26)
	}
	return func(ctx context.Context, a *arena) (handle, error) {
		h, err := setup(ctx, a)
		if err != nil {
			return nil, err
		}
		return func(msg *message.Message) error {
			msg.Payload = payload
			return h(msg)
		}, nil
	}
}

func intakeJoined(ctx context.Context, a *arena) (handle, error) {
	store, err := pgxStore(ctx, a, pgxinbox.Config{})
	if err != nil {
		return nil, err
	}
	return intakeOf(store)
}

func intakeOpenDB(ctx context.Context, a *arena) (handle, error) {
	store, err := sqlStore(ctx, a.claimDB(), sqlinbox.Config{})
	if err != nil {
		return nil, err
	}
	return intakeOf(store)
}

func intakeOf(store inbox.Store) (handle, error) {
	in, err := inbox.New(store, inbox.Config{Consumer: func(*message.Message) string { return consumer }})
	if err != nil {
		return nil, err
	}
	return handle(in.Intake()), nil
}

func intakePublish(ctx context.Context, a *arena) (handle, error) {
	store, err := pgxStore(ctx, a, pgxinbox.Config{})
	if err != nil {
		return nil, err
	}
	publisher := store.NewPublisher(sqlinbox.PublisherConfig{})
	return func(msg *message.Message) error { return publisher.Publish(consumer, msg) }, nil
}

const (
	storeMemory = `
INSERT INTO watermill_inbox (key, fingerprint, received_at, processed_at, message_time, consumer, source, message_id, topic)
VALUES ($1, $2, now(), NULL, $3, $4, '', $5, '')
ON CONFLICT (key) DO NOTHING`
	storeQueue = "INSERT INTO watermill_inbox_queue (key, consumer_id, due_at, message) VALUES ($1, $2, now(), $3)"
)

// intakeRowByRow is the intake as a caller of its own would write it: 4 round trips.
func intakeRowByRow(ctx context.Context, a *arena) (handle, error) {
	pool, err := migrated(ctx, a)
	if err != nil {
		return nil, err
	}
	return func(msg *message.Message) error { return storeRow(msg.Context(), pool, msg) }, nil
}

// migrated gives a pool on the inbox's tables.
func migrated(ctx context.Context, a *arena) (*pgxpool.Pool, error) {
	pool, err := a.pool(ctx)
	if err != nil {
		return nil, err
	}
	return pool, pgxinbox.Migrate(ctx, pool, pgxinbox.Config{})
}

func storeRow(ctx context.Context, pool *pgxpool.Pool, msg *message.Message) error {
	key := inbox.Key{Consumer: consumer, ID: msg.UUID}
	var made *time.Time
	if at, ok := inbox.IDTime(msg.UUID); ok {
		made = &at
	}
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, storeMemory, uuid(key.Storage()), contentOf(msg), made, consumer, msg.UUID)
		if err != nil || tag.RowsAffected() == 0 {
			return err
		}
		_, err = tx.Exec(ctx, storeQueue, uuid(key.Storage()), consumerID(), []byte(msg.Payload))
		return err
	})
}
