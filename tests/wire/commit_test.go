package wire

import (
	"context"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/inboxtest"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox/pgxinbox"
	"github.com/watermill-contrib/watermill-inbox/tests/services"
)

// TestLastWriteTravelsWithCommit counts a handler whose only write is ExecAtCommit: one round trip less than the bare
// transaction. What it returns is recorded in the same round trip.
func TestLastWriteTravelsWithCommit(t *testing.T) {
	t.Parallel()
	database, proxy := newDatabase(t, services.PostgreSQL(t)).behindProxy(t)
	client := openPgx(t, database)
	client.work = func(ctx context.Context, id string, _ int) error {
		return pgxinbox.ExecAtCommit(ctx, insertEffect, id, 0)
	}
	receiver := client.receive(t, 1)
	producing := client.receiveProducing(t)

	first := func() { receiver.deliver(t, inbox.NewUUID(), inbox.OutcomeProcessed) }
	recorded := func() { producing.deliver(t, inbox.NewUUID(), inbox.OutcomeProcessed) }
	t.Logf("cold: %s", describe(count(proxy, first)))
	recorded()
	for range rounds {
		require.Equal(t, inboxtest.Counts{RoundTrips: 2, Statements: 4}, count(proxy, first), "statements: %q", proxy.Log())
		require.Equal(t, inboxtest.Counts{RoundTrips: 2, Statements: 5}, count(proxy, recorded), "statements: %q", proxy.Log())
	}
	require.Equal(t, int64(2*rounds+2), database.number(t, "SELECT count(*) FROM effects"))
	require.Equal(t, int64(rounds+1), database.number(t, "SELECT count(*) FROM watermill_inbox_produced"))
}

// receiveProducing puts a handler behind the inbox that also returns a message.
func (c client) receiveProducing(t *testing.T) *receiver {
	t.Helper()
	r := &receiver{}
	in, err := inbox.New(c.store, inbox.Config{
		Consumer: func(*message.Message) string { return "billing/produce" },
		Observer: func(_ context.Context, e inbox.Event) { r.outcomes = append(r.outcomes, e.Outcome) },
	})
	require.NoError(t, err)
	r.handle = in.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		return []*message.Message{message.NewMessage(inbox.NewUUID(), nil)}, c.work(msg.Context(), msg.UUID, 1)
	})
	return r
}
