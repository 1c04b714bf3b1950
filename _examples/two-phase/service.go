package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/inboxtest"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox"
)

const (
	topic = "orders"
	// Consumers by their whole names, as the queue knows them: Config.Namespace + "/" + the handler's name.
	receipts     = "shop/receipt"
	cancellation = "shop/cancel"
)

type order struct {
	ID    int `json:"id"`
	Cents int `json:"cents"`
}

func orderOf(msg *message.Message) (o order, err error) {
	return o, json.Unmarshal(msg.Payload, &o)
}

// service charges orders at a payment provider. The four cures for a call to another system are numbered.
type service struct {
	provider provider
	work     *sqlinbox.Publisher
}

// charge holds no transaction and no connection while it waits for the provider.
func (s service) charge(msg *message.Message) ([]*message.Message, error) {
	ctx := msg.Context()
	o, err := orderOf(msg)
	if err != nil {
		return nil, err
	}
	// Cure 1, stored intermediate state: what a Step gave is kept, and a later attempt gets it without the call.
	replayed := 2
	step := func(what string) (string, error) {
		return inbox.Step(ctx, what, func(ctx context.Context) (string, error) {
			replayed--
			return s.call(ctx, what, o)
		})
	}
	if _, err := step("reserve"); err != nil {
		return nil, err
	}
	chargeID, err := step("charge")
	if err != nil {
		return nil, err
	}
	inboxtest.Point(crashPoint(afterStep, o.ID))

	// From here on everything is one transaction, and the end of the message is part of it.
	tx, err := sqlinbox.TxFromContext(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := tx.ExecContext(ctx, `INSERT INTO charges (order_id, charge_id, steps_replayed) VALUES (?, ?, ?)`, o.ID, chargeID, replayed); err != nil {
		return nil, err
	}
	// Cure 3, outgoing work: the receipt is sent if, and only if, the charge is committed.
	err = s.work.Publish(receipts, message.NewMessageWithContext(ctx, inbox.NewUUID(), msg.Payload))
	inboxtest.Point(crashPoint(beforeCommit, o.ID))
	return nil, err
}

// call asks the provider. Cure 2, the provider's key: IdempotencyKey is the same in every attempt, so that a call whose answer was
// lost can be made again.
func (s service) call(ctx context.Context, what string, o order) (string, error) {
	key, err := inbox.IdempotencyKey(ctx, what)
	if err != nil {
		return "", err
	}
	answer, err := s.provider.post(ctx, what, o.ID, key)
	if err == nil && what == "charge" {
		inboxtest.Point(crashPoint(inStep, o.ID))
	}
	return answer, err
}

// onDead is cure 4, compensation: in the transaction that gives an order up, the undoing of its reservation becomes work.
func (s service) onDead(ctx context.Context, dead sqlinbox.Dead) error {
	if dead.Key.Consumer == receipts || dead.Key.Consumer == cancellation {
		return nil // for an operator
	}
	o, err := orderOf(dead.Message)
	if err != nil {
		return err
	}
	tx, err := sqlinbox.TxFromContext(ctx)
	if err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, `INSERT INTO cancelled (order_id, reason) VALUES (?, ?)`, o.ID, dead.Cause.Error()); err != nil {
		return err
	}
	return s.work.Publish(cancellation, message.NewMessageWithContext(ctx, inbox.NewUUID(), dead.Message.Payload))
}

// outgoing is the handler of work that was put into the queue by a transaction.
func (s service) outgoing(what string) message.NoPublishHandlerFunc {
	return func(msg *message.Message) error {
		o, err := orderOf(msg)
		if err != nil {
			return err
		}
		_, err = s.call(msg.Context(), what, o)
		return err
	}
}

// newRouter puts it together.
func newRouter(ctx context.Context, db *sql.DB, broker message.Subscriber, p provider) (*message.Router, *sqlinbox.Store, error) {
	store, err := sqlinbox.NewStore(ctx, db, sqlinbox.Config{Dialect: sqlinbox.SQLite, InitializeSchema: true})
	if err != nil {
		return nil, nil, err
	}
	in, err := inbox.New(store, inbox.Config{Namespace: "shop", Logger: logger{}})
	if err != nil {
		return nil, nil, err
	}
	s := service{p, store.NewPublisher(sqlinbox.PublisherConfig{})}
	queue, err := store.NewSubscriber(sqlinbox.SubscriberConfig{
		Concurrency: 4, // of each consumer
		OnDead:      s.onDead,
		Logger:      logger{},
		// Short, because the workers here are killed and nobody likes to wait. The defaults are 30 s, 10, 1 s and 5 min.
		LeaseTime: 2 * time.Second, MaxAttempts: 5, BackoffMin: 50 * time.Millisecond, BackoffMax: 200 * time.Millisecond,
		MaxStarts: 5, // three workers are killed, and it is not the messages' fault
	})
	if err != nil {
		return nil, nil, err
	}
	router, err := message.NewRouter(message.RouterConfig{}, logger{})
	if err != nil {
		return nil, nil, err
	}
	router.AddMiddleware(in.Middleware)
	_, err = inbox.TwoPhase(router, in, inbox.TwoPhaseConfig{
		Name: "charge", Topic: topic, Subscriber: broker, Queue: queue, Handler: s.charge,
	})
	router.AddConsumerHandler("receipt", receipts, queue, s.outgoing("receipt"))
	router.AddConsumerHandler("cancel", cancellation, queue, s.outgoing("release"))
	return router, store, err
}
