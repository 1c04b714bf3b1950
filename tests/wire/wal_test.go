package wire

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/stretchr/testify/require"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/tests/services"
)

const (
	walMessages = 1000      // messages that a measurement is the average of
	walMemory   = 1_000_000 // remembered messages of the large memory
	walLimit    = 350       // bytes a message more than the bare transaction
)

// TestFirstDeliveryWritesLittleLog measures the place in the write-ahead log before and after many messages, on a
// server that nobody else uses.
//
// Just before, a checkpoint is made, and none comes meanwhile: so the log contains the full image of every page that the
// messages touch, once, as it does after each checkpoint in production, for the bare transaction and for the inbox. Ids
// that arrive in order touch few pages. The messages after those show what is written between checkpoints.
func TestFirstDeliveryWritesLittleLog(t *testing.T) {
	t.Parallel()
	server := services.StartPostgreSQL(t, "autovacuum=off", "checkpoint_timeout=1d", "max_wal_size=8GB")
	for _, memory := range []struct {
		name string
		rows int
	}{{"empty memory", 0}, {"memory of a million rows", walMemory}} {
		t.Run(memory.name, func(t *testing.T) {
			without, with := newDatabase(t, server.DSN()), newDatabase(t, server.DSN())
			bareClient, client := openPgx(t, without), openPgx(t, with)
			fillMemory(t, with, memory.rows)
			publish := startRouter(t, client)

			bare := func() { require.NoError(t, bareClient.bare(t.Context(), inbox.NewUUID(), 1)) }
			bare() // the connection's first, and the consumer's first
			publish()
			with.exec(t, "CHECKPOINT")
			afterCheckpoint := walPerMessage(t, with, publish) - walPerMessage(t, without, bare)
			later := walPerMessage(t, with, publish) - walPerMessage(t, without, bare)

			t.Logf("%d messages after a checkpoint: %+.0f bytes a message over bare; the next: %+.0f", walMessages, afterCheckpoint, later)
			require.LessOrEqual(t, afterCheckpoint, float64(walLimit))
			require.LessOrEqual(t, later, float64(walLimit))
			require.Positive(t, later)
			require.Equal(t, int64(2*walMessages+1), with.number(t, "SELECT count(*) FROM effects"))
			require.Equal(t, int64(2*walMessages+1+memory.rows), with.number(t, "SELECT count(*) FROM watermill_inbox"))
		})
	}
}

func walPerMessage(t *testing.T, d *database, handle func()) float64 {
	t.Helper()
	before := d.wal(t)
	for range walMessages {
		handle()
	}
	perMessage := float64(d.wal(t)-before) / walMessages
	t.Logf("%.0f bytes a message", perMessage)
	return perMessage
}

// startRouter starts a router with a handler behind the inbox and returns a func that publishes a message and returns
// when it is acked.
func startRouter(t *testing.T, c client) (publish func()) {
	t.Helper()
	in, err := inbox.New(c.store, inbox.Config{Namespace: "billing"})
	require.NoError(t, err)
	broker := gochannel.NewGoChannel(gochannel.Config{BlockPublishUntilSubscriberAck: true}, watermill.NopLogger{})
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	require.NoError(t, err)
	router.AddMiddleware(in.Middleware)
	router.AddConsumerHandler("charge", "orders.placed", broker, func(msg *message.Message) error {
		return c.work(msg.Context(), msg.UUID, 1)
	})
	ended := make(chan error, 1)
	go func() { ended <- router.Run(t.Context()) }()
	<-router.Running()
	t.Cleanup(func() {
		require.NoError(t, router.Close())
		require.NoError(t, <-ended)
		require.NoError(t, broker.Close())
	})
	return func() {
		require.NoError(t, broker.Publish("orders.placed", message.NewMessage(inbox.NewUUID(), []byte(`{"order_id":42}`))))
	}
}

// fillMemory remembers messages of the last week, in the order of their ids, as they would have arrived.
func fillMemory(t *testing.T, d *database, rows int) {
	t.Helper()
	d.exec(t, `
INSERT INTO watermill_inbox (key, fingerprint, received_at, processed_at, message_time, consumer, source, message_id, topic)
SELECT key, md5(i::text)::uuid, at, at, at, 'billing/charge', '', key::text, 'orders.placed'
FROM generate_series(1, $1::int) AS i,
  LATERAL (SELECT now() - interval '7 days' * (1 - (i - 1) / $1::float8)) AS made(at),
  LATERAL (SELECT (lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0') || right(md5(i::text), 20))::uuid) AS id(key)`, rows)
	d.exec(t, "ANALYZE watermill_inbox")
}
