package wire

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/inboxtest"
	"github.com/watermill-contrib/watermill-inbox/tests/services"
)

// rounds is how often each exchange is counted: every single one must cost the same.
const rounds = 20

// TestFirstDeliveryCostsTheBareRoundTrips counts on a warm connection: a statement that is used on it for the first
// time is prepared, by the bare transaction as well.
func TestFirstDeliveryCostsTheBareRoundTrips(t *testing.T) {
	t.Parallel()
	for _, driver := range drivers() {
		for _, inserts := range []int{1, 3} {
			t.Run(fmt.Sprintf("%s/%d", driver.name, inserts), func(t *testing.T) {
				t.Parallel()
				database, proxy := newDatabase(t, services.PostgreSQL(t)).behindProxy(t)
				client := driver.open(t, database)
				receiver := client.receive(t, inserts)

				bare := func() { require.NoError(t, client.bare(t.Context(), inbox.NewUUID(), inserts)) }
				first := func() { receiver.deliver(t, inbox.NewUUID(), inbox.OutcomeProcessed) }

				t.Logf("bare, cold: %s", describe(count(proxy, bare)))
				// The handler's statement is warm by now: what is cold is the inbox's own.
				t.Logf("first delivery, cold (the consumer's first in this process): %s", describe(count(proxy, first)))

				wantBare := inboxtest.Counts{RoundTrips: 2 + inserts, Statements: 2 + inserts}
				wantFirst := inboxtest.Counts{RoundTrips: 2 + inserts + driver.extra, Statements: 3 + inserts}
				for range rounds {
					require.Equal(t, wantBare, count(proxy, bare))
					require.Equal(t, wantFirst, count(proxy, first), "statements: %q", proxy.Log())
				}
				t.Logf("bare, warm: %s; first delivery, warm: %s", describe(wantBare), describe(wantFirst))
			})
		}
	}
}

func TestDuplicateCostsAtMostTwoRoundTrips(t *testing.T) {
	t.Parallel()
	for _, driver := range drivers() {
		t.Run(driver.name, func(t *testing.T) {
			t.Parallel()
			database, proxy := newDatabase(t, services.PostgreSQL(t)).behindProxy(t)
			receiver := driver.open(t, database).receive(t, 1)
			id := inbox.NewUUID()
			receiver.deliver(t, id, inbox.OutcomeProcessed)
			duplicate := func() { receiver.deliver(t, id, inbox.OutcomeDuplicate) }

			t.Logf("the connection's first duplicate: %s", describe(count(proxy, duplicate)))
			for range rounds {
				counts := count(proxy, duplicate)
				require.LessOrEqual(t, counts.RoundTrips, driver.duplicate, "statements: %q", proxy.Log())
				require.Zero(t, counts.Prepares)
			}
			t.Logf("duplicate: %s, %q", describe(count(proxy, duplicate)), proxy.Log())
			require.Equal(t, int64(1), database.number(t, "SELECT count(*) FROM effects"))
		})
	}
}

func count(proxy *inboxtest.Proxy, exchange func()) inboxtest.Counts {
	proxy.ResetCounts()
	exchange()
	return proxy.Counts()
}

func describe(c inboxtest.Counts) string {
	return fmt.Sprintf("%d round trips, %d statements, %d prepared", c.RoundTrips, c.Statements, c.Prepares)
}
