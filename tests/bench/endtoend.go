package main

import (
	"context"
	"crypto/rand"
	"errors"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox/pgxinbox"
)

const aboutEndToEnd = `From the intake to the commit of a handler that is one INSERT, with 64 messages on their way, 16 workers and pools of 32
connections. One at a time is the intake row by row, as above; each worker leases one message, by a committed statement, and
handles it: begin, DELETE the queue's row, mark the memory row, the INSERT, commit. It hardly ever looks in vain: the
intake tells the workers how many messages there are. The queue is the intake and a Subscriber of the inbox, with the
middleware around the handler. Inline is the handler behind the middleware, without a queue: what a handler as short as
this should use.`

// workers is how many messages are handled at once behind a queue.
const workers = 16

func endToEnd() []contender {
	return []contender{
		{name: "pgx, one at a time", counts: countEnded, setup: queueOneByOne},
		{name: "pgx, queue", against: "pgx, one at a time", goal: 3, counts: countEnded, setup: queuePgx},
		{name: "database/sql, queue, pgxinbox.OpenDB", against: "pgx, one at a time", counts: countEnded, setup: queueOpenDB},
		{name: "pgx, inline", against: "pgx, one at a time", setup: inboxPgx},
	}
}

// countEnded counts the effects, of which there are none as long as a message is not at its end.
const countEnded = `
SELECT count(*), count(DISTINCT message_id) FROM effects
WHERE NOT EXISTS (SELECT FROM watermill_inbox_queue) AND NOT EXISTS (SELECT FROM watermill_inbox WHERE processed_at IS NULL)`

// waiting are callers that wait until their message is handled.
type waiting struct{ byID sync.Map }

// handled lets store take in a message, and waits for its end.
func (w *waiting) handled(msg *message.Message, store handle) error {
	done := make(chan error, 1)
	w.byID.Store(msg.UUID, done)
	defer w.byID.Delete(msg.UUID)
	if err := store(msg); err != nil {
		return err
	}
	select {
	case err := <-done:
		return err
	case <-msg.Context().Done():
		return msg.Context().Err()
	}
}

// end tells the caller of a message what became of it.
func (w *waiting) end(id string, err error) {
	if done, ok := w.byID.Load(id); ok {
		done.(chan error) <- err
	}
}

// all tells every caller of an error that belongs to no message.
func (w *waiting) all(err error) {
	w.byID.Range(func(_, done any) bool {
		select {
		case done.(chan error) <- err:
		default:
		}
		return true
	})
}

func queuePgx(ctx context.Context, a *arena) (handle, error) {
	store, err := pgxStore(ctx, a, pgxinbox.Config{})
	if err != nil {
		return nil, err
	}
	return queued(ctx, a, store, store, pgxinbox.ConsumerHandler(workPgx))
}

func queueOpenDB(ctx context.Context, a *arena) (handle, error) {
	store, err := sqlStore(ctx, a.claimDB(), sqlinbox.Config{})
	if err != nil {
		return nil, err
	}
	return queued(ctx, a, store, store, sqlinbox.ConsumerHandler(workSQL))
}

// queueStore is a store with a queue.
type queueStore interface {
	inbox.Store
	NewSubscriber(config sqlinbox.SubscriberConfig) (*sqlinbox.Subscriber, error)
}

// queued takes messages in by one store and works on them by another, which stands for another process or is the same.
func queued(ctx context.Context, a *arena, intake, worker queueStore, handler message.NoPublishHandlerFunc) (handle, error) {
	stored, err := intakeOf(intake)
	if err != nil {
		return nil, err
	}
	work, err := behind(worker, handler)
	if err != nil {
		return nil, err
	}
	subscriber, err := worker.NewSubscriber(sqlinbox.SubscriberConfig{Concurrency: workers})
	if err != nil {
		return nil, err
	}
	messages, err := subscriber.Subscribe(ctx, consumer)
	if err != nil {
		return nil, err
	}
	var callers waiting
	done := make(chan struct{})
	go func() {
		defer close(done)
		for msg := range messages {
			go func() { // as the router does
				err := work(msg)
				if err != nil {
					msg.Nack()
				} else {
					msg.Ack()
				}
				callers.end(msg.UUID, err)
			}()
		}
	}()
	a.onClose(func() {
		_ = subscriber.Close()
		<-done
	})
	return func(msg *message.Message) error { return callers.handled(msg, stored) }, nil
}

const (
	leaseOne = `
WITH c AS MATERIALIZED (
  SELECT seq FROM watermill_inbox_queue WHERE consumer_id = $1 AND due_at <= now()
  ORDER BY due_at, seq LIMIT 1 FOR UPDATE SKIP LOCKED
), q AS (
  UPDATE watermill_inbox_queue AS q SET due_at = now() + interval '30 seconds', token = $2, attempts = q.attempts + 1
  FROM c WHERE q.seq = c.seq RETURNING q.seq, q.key, q.message
)
SELECT q.seq, q.key, m.message_id, q.message FROM q JOIN watermill_inbox AS m USING (key)`
	takeOne  = "DELETE FROM watermill_inbox_queue WHERE seq = $1 AND token = $2"
	markDone = "UPDATE watermill_inbox SET processed_at = now() WHERE key = $1"
)

// queueOneByOne is a queue as one would write it by hand.
func queueOneByOne(ctx context.Context, a *arena) (handle, error) {
	pool, err := migrated(ctx, a)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	var (
		callers waiting
		group   sync.WaitGroup
		ready   = make(chan struct{}, 1024) // as many tokens as there are messages; more than callers
	)
	for range workers {
		group.Go(func() {
			for {
				select {
				case <-ready:
				case <-ctx.Done():
					return
				}
				id, err := handleOne(ctx, pool)
				for errors.Is(err, pgx.ErrNoRows) { // another worker took the only one that was there: its own is there now
					id, err = handleOne(ctx, pool)
				}
				if id != "" {
					callers.end(id, err)
				} else if err != nil {
					callers.all(err)
				}
			}
		})
	}
	a.onClose(func() {
		cancel()
		group.Wait()
	})
	return func(msg *message.Message) error {
		return callers.handled(msg, func(msg *message.Message) error {
			err := storeRow(msg.Context(), pool, msg)
			if err == nil {
				ready <- struct{}{}
			}
			return err
		})
	}, nil
}

// errNotLeased: somebody else has the message, which cannot be.
var errNotLeased = errors.New("the lease is lost")

// handleOne leases a message and handles it.
func handleOne(ctx context.Context, pool *pgxpool.Pool) (id string, err error) {
	var (
		token   [16]byte
		seq     int64
		key     pgtype.UUID
		payload []byte
	)
	_, _ = rand.Read(token[:]) // never fails
	if err := pool.QueryRow(ctx, leaseOne, consumerID(), uuid(token)).Scan(&seq, &key, &id, &payload); err != nil {
		return id, err
	}
	msg := message.NewMessage(id, payload)
	return id, pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, takeOne, seq, uuid(token))
		if err != nil {
			return err
		}
		if tag.RowsAffected() != 1 {
			return errNotLeased
		}
		if _, err := tx.Exec(ctx, markDone, key); err != nil {
			return err
		}
		return workPgx(ctx, tx, msg)
	})
}
