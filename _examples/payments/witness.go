package main

import (
	"context"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"

	inbox "github.com/watermill-contrib/watermill-inbox"
)

// What became of a delivery.
const (
	booked             = "booked"
	duplicateMessage   = "duplicate message"
	duplicateOperation = "duplicate operation"
	mismatch           = "mismatch"
)

// witness sees deliveries in three places that do not know of each other: the subscriber's decorator, the inbox's
// Observer, and the handler of the poison queue.
type witness struct {
	mu         sync.Mutex
	paymentOf  map[string]string // by the UUID of a message
	deliveries int
	outcomes   map[string]int
	lives      map[string][]string // outcomes of each payment, in order
	refused    []string            // reasons
}

func newWitness() *witness {
	return &witness{paymentOf: map[string]string{}, outcomes: map[string]int{}, lives: map[string][]string{}}
}

func (w *witness) sent(uuid, payment string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.paymentOf[uuid] = payment
}

// count is in the decorator of the subscriber.
func (w *witness) count(*message.Message) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.deliveries++
}

// observe is the Observer of the inbox. The layer tells who knew the duplicate: the memory of messages or of operations.
func (w *witness) observe(_ context.Context, e inbox.Event) {
	became := string(e.Outcome)
	switch {
	case e.Outcome == inbox.OutcomeProcessed:
		became = booked
	case e.Outcome == inbox.OutcomeDuplicate && e.Layer == inbox.LayerMessage:
		became = duplicateMessage
	case e.Outcome == inbox.OutcomeDuplicate && e.Layer == inbox.LayerOperation:
		became = duplicateOperation
	case e.Outcome == inbox.OutcomeMismatch && e.Layer == inbox.LayerOperation:
		became = mismatch
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.outcomes[became]++
	payment := w.paymentOf[e.Key.ID]
	w.lives[payment] = append(w.lives[payment], became)
}

// look is the handler of the poison queue.
func (w *witness) look(msg *message.Message) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.refused = append(w.refused, msg.Metadata.Get(middleware.ReasonForPoisonedKey))
	return nil
}
