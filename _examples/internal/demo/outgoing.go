package demo

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Seen remembers orders, for handlers that fail at their first attempt.
type Seen struct{ orders sync.Map }

// First is true the first time that it is asked about an order.
func (s *Seen) First(id int64) bool {
	_, seen := s.orders.LoadOrStore(id, true)
	return !seen
}

// ProveOutgoing reads n outgoing messages of the topic and prints the numbers. It gives an error unless there is exactly
// one for each order in charged.
func ProveOutgoing(ctx context.Context, name string, charged []int64, n int, sub message.Subscriber, topic string) error {
	received, err := receive(ctx, sub, topic, n)
	if err != nil {
		return err
	}
	fmt.Printf("%s orders=%d outgoing=%d received=%d\n", name, len(charged), n, len(received))
	if slices.Sort(received); !slices.Equal(received, charged) {
		return fmt.Errorf("outgoing are messages about the orders %v, want one for each of %v", received, charged)
	}
	return nil
}

// Stalled tells why outgoing messages may not have come in time.
func Stalled(err error) error {
	return fmt.Errorf("%w (watermill-sql's default schema gives a row only when every older writing transaction of the server has ended: is one open in pg_stat_activity?)", err)
}

// receive gives the orders that n messages are about.
func receive(ctx context.Context, sub message.Subscriber, topic string, n int) ([]int64, error) {
	messages, err := sub.Subscribe(ctx, topic)
	if err != nil {
		return nil, err
	}
	defer sub.Close() //nolint:errcheck // everything that it gave was acked
	var orders []int64
	for range n {
		msg, ok := <-messages
		if !ok {
			return nil, Stalled(fmt.Errorf("%d of %d outgoing messages: %w", len(orders), n, ctx.Err()))
		}
		order, err := ParseOrder(msg)
		if err != nil {
			return nil, err
		}
		orders = append(orders, order.ID)
		msg.Ack()
	}
	return orders, nil
}
