package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-contrib/watermill-inbox/inboxtest"
)

type handlerFunc = func(ctx context.Context, tx *sql.Tx, msg *message.Message) error

var errDeclined = errors.New("the card was declined, this once")

// withAccidents lets things go wrong where it would hurt most: after the handler's INSERT and before its commit.
func withAccidents(handler handlerFunc) handlerFunc {
	var tried sync.Map
	return func(ctx context.Context, tx *sql.Tx, msg *message.Message) error {
		if err := handler(ctx, tx, msg); err != nil {
			return err
		}
		id, err := orderID(msg)
		if err != nil {
			return err
		}
		inboxtest.Point(handlerPoint(id)) // where the parent asked for it, it says so and stands still
		if _, again := tried.LoadOrStore(id, true); id%failEvery == 0 && !again {
			return errDeclined
		}
		return nil
	}
}

// handlerPoint is the name of the place inside the handler of one order.
func handlerPoint(id int) string { return fmt.Sprintf("order %d", id) }

// errorLogger prints errors, but not those that are part of the story: the table counts them.
type errorLogger struct{ watermill.NopLogger }

func (l errorLogger) Error(msg string, err error, _ watermill.LogFields) {
	if !errors.Is(err, errDeclined) {
		fmt.Fprintf(os.Stderr, "%s: %v\n", msg, err)
	}
}

func (l errorLogger) With(watermill.LogFields) watermill.LoggerAdapter { return l }
