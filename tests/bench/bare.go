package main

import (
	"context"
	"database/sql"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
)

// insertEffect is the whole work of every handler.
const insertEffect = "INSERT INTO effects (message_id) VALUES ($1)"

// pgxWork is what a handler does in its transaction.
type pgxWork = func(ctx context.Context, tx pgx.Tx, msg *message.Message) error

// sqlWork is the same on database/sql.
type sqlWork = func(ctx context.Context, tx *sql.Tx, msg *message.Message) error

func workPgx(ctx context.Context, tx pgx.Tx, msg *message.Message) error {
	_, err := tx.Exec(ctx, insertEffect, msg.UUID)
	return err
}

func workSQL(ctx context.Context, tx *sql.Tx, msg *message.Message) error {
	_, err := tx.ExecContext(ctx, insertEffect, msg.UUID)
	return err
}

// barePgx is a handler that begins a transaction, does its work and commits: 3 round trips, at least once.
func barePgx(ctx context.Context, a *arena) (handle, error) {
	pool, err := a.pool(ctx)
	if err != nil {
		return nil, err
	}
	return func(msg *message.Message) error {
		ctx := msg.Context()
		tx, err := pool.Begin(ctx)
		if err != nil {
			return err
		}
		defer tx.Rollback(ctx) //nolint:errcheck // after Commit it does nothing
		if err := workPgx(ctx, tx, msg); err != nil {
			return err
		}
		return tx.Commit(ctx)
	}, nil
}

// bareSQL is the same on database/sql.
func bareSQL(_ context.Context, a *arena) (handle, error) {
	db := a.db()
	return func(msg *message.Message) error {
		ctx := msg.Context()
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback() //nolint:errcheck // after Commit it does nothing
		if err := workSQL(ctx, tx, msg); err != nil {
			return err
		}
		return tx.Commit()
	}, nil
}
