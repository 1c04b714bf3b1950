package main

import (
	"context"
	"crypto/sha256"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox/pgxinbox"
)

// blockingClaim is the inbox's claim without its lock: the INSERT waits until the transaction that holds the key ends.
const blockingClaim = `
INSERT INTO watermill_inbox (key, fingerprint, received_at, processed_at, consumer, source, message_id, topic)
VALUES ($1, $2, now(), now(), $3, '', $4, '')
ON CONFLICT (key) DO NOTHING`

// blocking leaves it to the database to make copies wait. Everything else is as in the inbox: the same table and key,
// BEGIN and the claim in one round trip, and for a duplicate one more; and it is spared the read of what stands there.
func blocking(ctx context.Context, a *arena, work pgxWork) (handle, error) {
	pool, err := a.pool(ctx)
	if err != nil {
		return nil, err
	}
	if err := pgxinbox.Migrate(ctx, pool, pgxinbox.Config{}); err != nil {
		return nil, err
	}
	return func(msg *message.Message) error {
		ctx := msg.Context()
		tx, first, err := beginBlocking(ctx, pool, msg)
		if tx != nil {
			defer tx.Rollback(ctx) //nolint:errcheck // after Commit it does nothing
		}
		if err != nil || !first {
			return err
		}
		if err := work(ctx, tx, msg); err != nil {
			return err
		}
		return tx.Commit(ctx)
	}, nil
}

func beginBlocking(ctx context.Context, pool *pgxpool.Pool, msg *message.Message) (tx pgx.Tx, first bool, err error) {
	key := inbox.Key{Consumer: consumer, ID: msg.UUID}
	batch := &pgx.Batch{}
	batch.BeginTx(pgx.TxOptions{})
	batch.Queue(blockingClaim, uuid(key.Storage()), contentOf(msg), key.Consumer, key.ID)
	results := pool.SendBatch(ctx, batch)
	tx = results.Tx()
	var tag pgconn.CommandTag
	for range batch.QueuedQueries {
		if tag, err = results.Exec(); err != nil {
			break
		}
	}
	if closeErr := results.Close(); err == nil {
		err = closeErr
	}
	return tx, tag.RowsAffected() == 1, err
}

// contentOf is the fingerprint of a message.
func contentOf(msg *message.Message) pgtype.UUID {
	content := sha256.Sum256(msg.Payload)
	return uuid([16]byte(content[:16]))
}

// consumerID stands for the number that the inbox derives from the consumer.
func consumerID() pgtype.UUID { return uuid(inbox.Key{Consumer: consumer}.Storage()) }

func uuid(b [16]byte) pgtype.UUID { return pgtype.UUID{Bytes: b, Valid: true} }
