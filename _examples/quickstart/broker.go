package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/ThreeDotsLabs/watermill/message"

	inbox "github.com/watermill-contrib/watermill-inbox"
)

// gochannel is a broker inside one process. Two files give it the memory that a real one has: orders.json is the
// topic, and the journal tells which deliveries were acked.

const (
	topic     = "orders"
	copyField = "copy" // metadata: which of the copies of an order it is
)

// order is one message; its UUID is made once, and every copy of the order carries it.
type order struct {
	UUID  string `json:"uuid"`
	ID    int    `json:"id"`
	Cents int    `json:"cents"`
}

func makeOrders(dir string) ([]order, error) {
	orders := make([]order, orderCount)
	for i := range orders {
		orders[i] = order{UUID: inbox.NewUUID(), ID: i + 1, Cents: 100 * (i + 1)}
	}
	text, err := json.Marshal(orders)
	if err != nil {
		return nil, err
	}
	return orders, os.WriteFile(filepath.Join(dir, "orders.json"), text, 0o600)
}

func readOrders(dir string) ([]order, error) {
	text, err := os.ReadFile(filepath.Join(dir, "orders.json"))
	if err != nil {
		return nil, err
	}
	var orders []order
	return orders, json.Unmarshal(text, &orders)
}

func (o order) message(n int) (*message.Message, error) {
	payload, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	msg := message.NewMessage(o.UUID, payload)
	msg.Metadata.Set(copyField, strconv.Itoa(n))
	return msg, nil
}

func orderID(msg *message.Message) (int, error) {
	var o order
	err := json.Unmarshal(msg.Payload, &o)
	return o.ID, err
}

// readDue gives all deliveries that were not acked so far and that wanted accepts.
func readDue(dir string, wanted func(id, n int) bool) ([]*message.Message, error) {
	orders, err := readOrders(dir)
	if err != nil {
		return nil, err
	}
	entries, err := readJournal(dir)
	if err != nil {
		return nil, err
	}
	acked := map[string]bool{}
	for _, e := range entries {
		if e.Witness == subscriber && e.What == whatAcked {
			acked[e.UUID+e.Copy] = true
		}
	}
	var due []*message.Message
	for n := 1; n <= copies; n++ {
		for _, o := range orders {
			if acked[o.UUID+strconv.Itoa(n)] || !wanted(o.ID, n) {
				continue
			}
			msg, err := o.message(n)
			if err != nil {
				return nil, fmt.Errorf("order %d: %w", o.ID, err)
			}
			due = append(due, msg)
		}
	}
	return due, nil
}

// The three parts of the story, as filters for readDue. Process 1 sees copy 1 of orders 1 to 70, copy 2 of 1 to 50 and
// copy 3 of 1 to 30, then the order that it dies of; process 2 gets everything that is left.

func beforeKill(id, n int) bool { return id < killedAt-20*(n-1) }

func atKill(id, n int) bool { return id == killedAt && n == 1 }

func everything(int, int) bool { return true }
