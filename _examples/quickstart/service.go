package main

import (
	"context"
	"database/sql"
	"encoding/json"

	"github.com/ThreeDotsLabs/watermill/message"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox"
)

// charge is the handler. It has a transaction, writes with it, and returns: the inbox begins and commits.
func charge(ctx context.Context, tx *sql.Tx, msg *message.Message) error {
	var o order
	if err := json.Unmarshal(msg.Payload, &o); err != nil {
		return err
	}
	_, err := tx.ExecContext(ctx, `INSERT INTO charges (order_id, cents) VALUES (?, ?)`, o.ID, o.Cents)
	return err
}

// newRouter is a service with an inbox: a store on the database, the inbox on the store, the middleware on the router.
func newRouter(ctx context.Context, db *sql.DB, orders message.Subscriber, observer inbox.Observer) (*message.Router, error) {
	store, err := sqlinbox.NewStore(ctx, db, sqlinbox.Config{Dialect: sqlinbox.SQLite, InitializeSchema: true})
	if err != nil {
		return nil, err
	}
	in, err := inbox.New(store, inbox.Config{Namespace: "shop", Observer: observer, Logger: errorLogger{}})
	if err != nil {
		return nil, err
	}
	router, err := message.NewRouter(message.RouterConfig{}, errorLogger{})
	if err != nil {
		return nil, err
	}
	router.AddMiddleware(in.Middleware)
	router.AddConsumerHandler("charge", topic, orders, sqlinbox.ConsumerHandler(withAccidents(charge)))
	return router, nil
}
