package tests_test

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	pubsub "github.com/ThreeDotsLabs/watermill/pubsub/tests"
	"github.com/stretchr/testify/require"

	"github.com/watermill-contrib/watermill-inbox/sqlinbox"
	"github.com/watermill-contrib/watermill-inbox/tests"
)

// TestQueuePubSub runs Watermill's universal suite on the queue as a Pub/Sub: the publisher and the subscriber of a store,
// without any inbox in between. With an order key the order is guaranteed too.
func TestQueuePubSub(t *testing.T) {
	for _, c := range columns() {
		if c.features.Name == "pgx-opendb" { // as pgx-sql
			continue
		}
		t.Run(c.features.Name, func(t *testing.T) {
			testQueuePubSub(t, c, pubsub.Features{}, sqlinbox.PublisherConfig{})
		})
	}
	t.Run("ordered", func(t *testing.T) {
		order := sqlinbox.PublisherConfig{OrderKey: func(*message.Message) string { return "all" }}
		testQueuePubSub(t, columns()[0], pubsub.Features{GuaranteedOrder: true}, order)
	})
}

func testQueuePubSub(t *testing.T, c column, features pubsub.Features, config sqlinbox.PublisherConfig) {
	t.Helper()
	o := tests.Options{PoolSize: 16}
	if !c.features.Server {
		o.PoolSize = 1 // one writer: the pool makes the wait for it fair
	}
	env := c.harness(t, o)
	store, ok := env.Store.(interface {
		NewSubscriber(config sqlinbox.SubscriberConfig) (*sqlinbox.Subscriber, error)
		NewPublisher(config sqlinbox.PublisherConfig) *sqlinbox.Publisher
	})
	require.True(t, ok)
	features.Persistent = true
	features.ForceShort = tests.Scale(10, 1) < 10 // sizes of thousands are for the long run
	pubsub.TestPubSub(t, features, func(t *testing.T) (message.Publisher, message.Subscriber) {
		sub, err := store.NewSubscriber(sqlinbox.SubscriberConfig{
			BackoffMin: 10 * time.Millisecond, PollInterval: 100 * time.Millisecond, CloseTimeout: time.Second,
			Logger: watermill.NopLogger{},
		})
		require.NoError(t, err)
		return store.NewPublisher(config), sub
	}, nil)
}
