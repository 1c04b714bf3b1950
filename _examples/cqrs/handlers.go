package main

import (
	"context"
	"errors"

	"github.com/ThreeDotsLabs/watermill/components/cqrs"

	"github.com/watermill-contrib/watermill-inbox/_examples/internal/demo"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox"
)

// The messages. CardUsed has no handler here.
type (
	PayOrder  struct{ OrderID int64 }
	OrderPaid struct{ OrderID int64 }
	CardUsed  struct{ OrderID int64 }
)

// handlers write in the transaction that the inbox has begun for their message; it is in ctx.
type handlers struct {
	events        *cqrs.EventBus
	paid, counted demo.Seen
}

// payOrder publishes in its transaction too: when it fails, the events are rolled back with the payment.
func (h *handlers) payOrder(ctx context.Context, command *PayOrder) error {
	err := errors.Join(
		write(ctx, "payment", command.OrderID),
		h.events.Publish(ctx, OrderPaid{command.OrderID}),
		h.events.Publish(ctx, CardUsed{command.OrderID}),
	)
	if command.OrderID%2 == 1 && h.paid.First(command.OrderID) {
		return errors.New("declined, this once")
	}
	return err
}

func (h *handlers) sendReceipt(ctx context.Context, event *OrderPaid) error {
	return write(ctx, "receipt", event.OrderID)
}

// sum and count are a group: one message, one transaction, all or nothing.
func (h *handlers) sum(ctx context.Context, event *OrderPaid) error {
	return write(ctx, "sum", event.OrderID)
}

func (h *handlers) count(ctx context.Context, event *OrderPaid) error {
	if h.counted.First(event.OrderID) {
		return errors.New("not at the first attempt, and sum is undone")
	}
	return write(ctx, "count", event.OrderID)
}

func write(ctx context.Context, name string, orderID int64) error {
	tx, err := sqlinbox.TxFromContext(ctx)
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, `INSERT INTO effects (name, order_id) VALUES ($1, $2)`, name, orderID)
	return err
}
