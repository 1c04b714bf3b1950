package main

import (
	"encoding/json"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/businesskey"
)

const paymentCount = 20

// payment is what the client wants to happen once. Its id is made once, before the first attempt, and kept.
type payment struct {
	id      string
	account string
	cents   int64
	again   int  // how often the client sends it again, because it missed the reply
	changed bool // and whether it sends it once more, for another amount
}

func makePayments() []payment {
	payments := make([]payment, paymentCount)
	for i := range payments {
		n := i + 1
		p := payment{id: fmt.Sprintf("pay-%02d", n), account: accounts[i%len(accounts)], cents: int64(100 * n)}
		switch {
		case n%6 == 0:
			p.again = 2
		case n%3 == 0:
			p.again = 1
		}
		p.changed = n%5 == 0
		payments[i] = p
	}
	return payments
}

// payAll is the client. Each attempt is a message of its own, with a UUID of its own: nothing but the operation id
// tells that it is the same payment. The broker's part is to deliver that message twice.
func payAll(broker message.Publisher, payments []payment, w *witness) error {
	for _, p := range payments {
		attempts := 1 + p.again
		if p.changed {
			attempts++
		}
		for n := range attempts {
			c := command{Account: p.account, Cents: p.cents, Attempt: n + 1}
			if p.changed && n == attempts-1 {
				c.Cents *= 10
			}
			payload, err := json.Marshal(c)
			if err != nil {
				return err
			}
			msg := message.NewMessage(inbox.NewUUID(), payload)
			msg.Metadata.Set(businesskey.OperationIDMetadataKey, p.id)
			w.sent(msg.UUID, p.id)
			if err := broker.Publish(commandsTopic, msg, msg.Copy()); err != nil {
				return err
			}
		}
	}
	return nil
}

// sends describes the payment's messages.
func (p payment) sends() string {
	text := "once"
	if p.again > 0 {
		text = fmt.Sprintf("%d times", 1+p.again)
	}
	if p.changed {
		text += ", then 10 times the amount"
	}
	return text
}
