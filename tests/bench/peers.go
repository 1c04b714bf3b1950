package main

import (
	"context"
	"errors"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	aboutPeers     = "What other inboxes send, as pgx sends it, on the textbook's table."
	aboutPeersDups = aboutPeers + ` A duplicate is answered from the database (the inbox:
DoneTTL -1) and rolled back; after a violation pgx forgets the statement and prepares it again.`
)

// peers are the sequences of statements by which other inboxes know a message, beside ours. All of them use the
// textbook's table, each statement is a round trip, and a duplicate ends with ROLLBACK, which is cheaper than COMMIT.
func peers(ours func(context.Context, *arena) (handle, error)) []contender {
	return []contender{
		{name: "pgx, inbox", setup: ours},
		{name: "pgx, select for update, insert, update", against: "pgx, inbox", setup: peerOneTransaction},
		{name: "pgx, the same in two transactions", against: "pgx, inbox", setup: peerTwoTransactions},
		{name: "pgx, insert, violation caught at a savepoint", against: "pgx, inbox", setup: peerSavepoint},
		{name: "pgx, insert, violation ends the transaction", against: "pgx, inbox", setup: peerViolation},
	}
}

const peerInsert = "INSERT INTO textbook (consumer, message_id, status, processed_at) VALUES ($1, $2, 'processed', now())"

// errDuplicate rolls the transaction of a duplicate back.
var errDuplicate = errors.New("duplicate")

// peerOneTransaction locks the row, inserts it if there is none, works and marks it as processed.
func peerOneTransaction(ctx context.Context, a *arena) (handle, error) {
	return peer(ctx, a, func(ctx context.Context, pool *pgxpool.Pool, msg *message.Message) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			if err := lookAndInsert(ctx, tx, msg.UUID); err != nil {
				return err
			}
			return workAndMark(ctx, tx, msg)
		})
	})
}

// peerTwoTransactions commits the row before the work: after a crash it knows only that the work was begun.
func peerTwoTransactions(ctx context.Context, a *arena) (handle, error) {
	return peer(ctx, a, func(ctx context.Context, pool *pgxpool.Pool, msg *message.Message) error {
		err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return lookAndInsert(ctx, tx, msg.UUID) })
		if err != nil {
			return err
		}
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return workAndMark(ctx, tx, msg) })
	})
}

// peerSavepoint inserts behind a savepoint: the transaction outlives a violation.
func peerSavepoint(ctx context.Context, a *arena) (handle, error) {
	return peer(ctx, a, func(ctx context.Context, pool *pgxpool.Pool, msg *message.Message) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			err := pgx.BeginFunc(ctx, tx, func(savepoint pgx.Tx) error {
				_, err := savepoint.Exec(ctx, peerInsert, consumer, msg.UUID)
				return err
			})
			if err != nil {
				return err
			}
			return workPgx(ctx, tx, msg)
		})
	})
}

// peerViolation inserts; a violation ends the transaction.
func peerViolation(ctx context.Context, a *arena) (handle, error) {
	return peer(ctx, a, func(ctx context.Context, pool *pgxpool.Pool, msg *message.Message) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, peerInsert, consumer, msg.UUID); err != nil {
				return err
			}
			return workPgx(ctx, tx, msg)
		})
	})
}

func peer(ctx context.Context, a *arena, deliver func(context.Context, *pgxpool.Pool, *message.Message) error) (handle, error) {
	pool, err := a.pool(ctx)
	if err != nil {
		return nil, err
	}
	if err := a.create(ctx, textbookTable); err != nil {
		return nil, err
	}
	return func(msg *message.Message) error {
		err := deliver(msg.Context(), pool, msg)
		if errors.Is(err, errDuplicate) || isViolation(err) {
			return nil
		}
		return err
	}, nil
}

// lookAndInsert is nil for a new message.
func lookAndInsert(ctx context.Context, tx pgx.Tx, id string) error {
	var status string
	err := tx.QueryRow(ctx, textbookStatus+" FOR UPDATE", consumer, id).Scan(&status)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		_, err = tx.Exec(ctx, textbookInsert, consumer, id)
	case err == nil && status == "processed":
		err = errDuplicate
	}
	return err
}

func workAndMark(ctx context.Context, tx pgx.Tx, msg *message.Message) error {
	if err := workPgx(ctx, tx, msg); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, textbookDone, consumer, msg.UUID)
	return err
}

func isViolation(err error) bool {
	var pgErr *pgconn.PgError
	return errors.As(err, &pgErr) && pgErr.Code == "23505"
}
