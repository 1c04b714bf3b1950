package main

import (
	"context"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	textbookTable = `TABLE textbook (
		consumer     text NOT NULL,
		message_id   text NOT NULL,
		status       text NOT NULL,
		received_at  timestamptz NOT NULL DEFAULT now(),
		processed_at timestamptz,
		PRIMARY KEY (consumer, message_id)
	)`
	textbookInsert = "INSERT INTO textbook (consumer, message_id, status) VALUES ($1, $2, 'processing')"
	textbookStatus = "SELECT status FROM textbook WHERE consumer = $1 AND message_id = $2"
	textbookDone   = "UPDATE textbook SET status = 'processed', processed_at = now() WHERE consumer = $1 AND message_id = $2"
)

// textbook is the inbox as articles show it: begin, insert the id unless it is there, work, mark it as processed,
// commit: 5 round trips. For an id that is there its status is read and the transaction rolled back: 4.
func textbook(ctx context.Context, a *arena) (handle, error) {
	return textbookWith(ctx, a, func(ctx context.Context, tx pgx.Tx, id string) (bool, error) {
		tag, err := tx.Exec(ctx, textbookInsert+" ON CONFLICT DO NOTHING", consumer, id)
		if err != nil || tag.RowsAffected() == 1 {
			return true, err
		}
		var status string
		err = tx.QueryRow(ctx, textbookStatus, consumer, id).Scan(&status)
		return status != "processed", err
	})
}

// textbookCaught knows a duplicate by the database's error.
func textbookCaught(ctx context.Context, a *arena) (handle, error) {
	return textbookWith(ctx, a, func(ctx context.Context, tx pgx.Tx, id string) (bool, error) {
		_, err := tx.Exec(ctx, textbookInsert, consumer, id)
		if isViolation(err) {
			return false, nil
		}
		return true, err
	})
}

func textbookWith(ctx context.Context, a *arena, isNew func(context.Context, pgx.Tx, string) (bool, error)) (handle, error) {
	pool, err := a.pool(ctx)
	if err != nil {
		return nil, err
	}
	if err := a.create(ctx, textbookTable); err != nil {
		return nil, err
	}
	return func(msg *message.Message) error { return textbookHandle(pool, msg, isNew) }, nil
}

func textbookHandle(pool *pgxpool.Pool, msg *message.Message, isNew func(context.Context, pgx.Tx, string) (bool, error)) error {
	ctx := msg.Context()
	tx, err := pool.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback(ctx) //nolint:errcheck // after Commit it does nothing
	first, err := isNew(ctx, tx, msg.UUID)
	if err != nil || !first {
		return err
	}
	if err := workPgx(ctx, tx, msg); err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, textbookDone, consumer, msg.UUID); err != nil {
		return err
	}
	return tx.Commit(ctx)
}
