package wire

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/businesskey"
	"github.com/watermill-contrib/watermill-inbox/inboxtest"
	"github.com/watermill-contrib/watermill-inbox/tests/services"
)

// operations is a handler with one insert behind both layers.
func (c client) operations(t *testing.T, claims bool) message.HandlerFunc {
	t.Helper()
	keys, err := businesskey.New(c.store.(inbox.OperationStore), businesskey.Config{})
	require.NoError(t, err)
	config := inbox.Config{Consumer: func(*message.Message) string { return "billing/charge" }}
	if claims {
		config.Claims = keys.Claims
	}
	in, err := inbox.New(c.store, config)
	require.NoError(t, err)
	return in.Middleware(keys.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		return nil, c.work(msg.Context(), msg.UUID, 1)
	}))
}

func command(t *testing.T, operation string) *message.Message {
	msg := message.NewMessage(inbox.NewUUID(), []byte(`{"order_id":42}`))
	msg.Metadata.Set(businesskey.OperationIDMetadataKey, operation)
	msg.SetContext(t.Context())
	return msg
}

// TestOperationCostsARoundTripOrNone counts the deliveries of new operations, and of operations that were done before,
// each with and without Config.Claims.
func TestOperationCostsARoundTripOrNone(t *testing.T) {
	t.Parallel()
	all := drivers()
	for _, c := range []struct {
		driver      driver
		with, plain int // round trips
	}{
		// BEGIN and both claims, the insert (or the read of what was recorded), COMMIT; without Claims one more.
		{all[0], 3, 4},
		{all[2], 3, 4},
		{all[1], 5, 5}, // without pipelining there is nothing to save
	} {
		for name, claims := range map[string]bool{"Claims": true, "plain": false} {
			t.Run(c.driver.name+"/"+name, func(t *testing.T) {
				t.Parallel()
				database, proxy := newDatabase(t, services.PostgreSQL(t)).behindProxy(t)
				client := c.driver.open(t, database)
				handle := client.operations(t, claims)
				want := inboxtest.Counts{RoundTrips: c.plain, Statements: 5}
				if claims {
					want.RoundTrips = c.with
				}
				deliver := func(operation string) func() {
					return func() {
						_, err := handle(command(t, operation))
						require.NoError(t, err)
					}
				}
				deliver("warm")()
				deliver("warm")()
				bare := count(proxy, func() { require.NoError(t, client.bare(t.Context(), inbox.NewUUID(), 1)) })
				require.Equal(t, 3, bare.RoundTrips)
				for range rounds {
					require.Equal(t, want, count(proxy, deliver(inbox.NewUUID())), "a new operation: %q", proxy.Log())
					require.Equal(t, want, count(proxy, deliver("warm")), "one that was done: %q", proxy.Log())
				}
				t.Logf("new, or done before: %s", describe(want))
			})
		}
	}
}
