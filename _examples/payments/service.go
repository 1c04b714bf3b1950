package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/_examples/internal/demo"
	"github.com/watermill-contrib/watermill-inbox/businesskey"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox"
)

const (
	commandsTopic = "commands"
	refusedTopic  = "refused" // the poison queue: someone must look at what is there
)

// command is the payload. The operation id is in the metadata operation_id, where businesskey looks for it.
type command struct {
	Account string `json:"account"`
	Cents   int64  `json:"cents"`
	Attempt int    `json:"attempt"`
}

// pay is the handler. It would book a payment twice if it were called twice.
func pay(ctx context.Context, tx *sql.Tx, msg *message.Message) error {
	var c command
	if err := json.Unmarshal(msg.Payload, &c); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, `INSERT INTO payments (account, cents) VALUES ($1, $2)`, c.Account, c.Cents); err != nil {
		return err
	}
	_, err := tx.ExecContext(ctx, `UPDATE accounts SET cents = cents + $1 WHERE name = $2`, c.Cents, c.Account)
	return err
}

// whatMatters is what two messages of one payment must share; the number of the attempt is not part of it.
func whatMatters(msg *message.Message) []byte {
	var c command
	if err := json.Unmarshal(msg.Payload, &c); err != nil {
		return msg.Payload
	}
	return fmt.Appendf(nil, "%q %d", c.Account, c.Cents)
}

// service is a handler of commands, and one that looks at the refused ones.
type service struct {
	broker *gochannel.GoChannel
	router *message.Router
}

// newService puts the two layers together: the inbox knows messages, the keys know operations.
func newService(ctx context.Context, db *sql.DB, dialect sqlinbox.Dialect, w *witness) (s service, err error) {
	store, err := sqlinbox.NewStore(ctx, db, sqlinbox.Config{Dialect: dialect, InitializeSchema: true})
	if err != nil {
		return s, err
	}
	keys, err := businesskey.New(store, businesskey.Config{Fingerprint: whatMatters})
	if err != nil {
		return s, err
	}
	in, err := inbox.New(store, inbox.Config{
		Namespace: "bank", Claims: keys.Claims, Observer: w.observe, Logger: demo.Logger(),
	})
	if err != nil {
		return s, err
	}
	// Publish returns after the ack: the client waits for it, and what is in the poison queue was looked at.
	s.broker = gochannel.NewGoChannel(gochannel.Config{BlockPublishUntilSubscriberAck: true}, demo.Logger())
	refuse, err := middleware.PoisonQueueWithFilter(s.broker, refusedTopic, func(err error) bool { return !inbox.IsTransient(err) })
	if err != nil {
		return s, err
	}
	commands, err := message.MessageTransformSubscriberDecorator(w.count)(s.broker)
	if err != nil {
		return s, err
	}
	s.router, err = message.NewRouter(message.RouterConfig{}, demo.Logger())
	if err != nil {
		return s, err
	}
	// On the handler, and not on the router: what arrives in the other one asks for no operation.
	s.router.AddConsumerHandler("pay", commandsTopic, commands, sqlinbox.ConsumerHandler(pay)).
		AddMiddleware(refuse, in.Middleware, keys.Middleware)
	s.router.AddConsumerHandler("look", refusedTopic, s.broker, w.look)
	return s, nil
}
