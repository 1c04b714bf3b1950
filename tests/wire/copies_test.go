package wire

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/inboxtest"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox"
	"github.com/watermill-contrib/watermill-inbox/tests/services"
)

// TestSeenDuplicateCostsNothing counts a copy of a message that this process has handled, or has read to be handled: no
// round trip, no statement, no prepared one.
func TestSeenDuplicateCostsNothing(t *testing.T) {
	t.Parallel()
	for _, driver := range drivers() {
		t.Run(driver.name, func(t *testing.T) {
			t.Parallel()
			database, proxy := newDatabase(t, services.PostgreSQL(t)).behindProxy(t)
			client := driver.open(t, database)
			elsewhere := client.receive(t, 1) // another store, which remembers nothing by itself
			client.store = openWith(t, client, sqlinbox.Config{})
			own := client.receive(t, 1)
			own.deliver(t, inbox.NewUUID(), inbox.OutcomeProcessed) // its connection is new, which empties

			for _, first := range []*receiver{own, elsewhere} {
				id := inbox.NewUUID()
				first.deliver(t, id, inbox.OutcomeProcessed)
				if first == elsewhere {
					require.Positive(t, count(proxy, func() { own.deliver(t, id, inbox.OutcomeDuplicate) }).RoundTrips)
				}
				for range rounds {
					require.Equal(t, inboxtest.Counts{}, count(proxy, func() {
						own.deliver(t, id, inbox.OutcomeDuplicate)
					}), "statements: %q", proxy.Log())
				}
				other := message.NewMessage(id, []byte("other content"))
				require.Equal(t, inboxtest.Counts{}, count(proxy, func() {
					_, err := own.handle(other)
					require.ErrorIs(t, err, inbox.ErrMismatch)
				}))
			}
			require.Equal(t, int64(3), database.number(t, "SELECT count(*) FROM effects"))
		})
	}
}

// TestCopyInFlightElsewhereCostsAProbeEach counts a copy of a message that another process is handling: one claim, which
// comes out empty, then nothing but a single round trip each time it asks again.
func TestCopyInFlightElsewhereCostsAProbeEach(t *testing.T) {
	t.Parallel()
	// Rollback and read after the claim; without pipelining each by itself, and why nothing was read.
	claim := map[string]int{"pgx": 2, "OpenDB": 2, "database-sql": 5}
	for _, driver := range drivers() {
		t.Run(driver.name, func(t *testing.T) {
			t.Parallel()
			direct := newDatabase(t, services.PostgreSQL(t))
			database, proxy := direct.behindProxy(t)
			holder, client := driver.open(t, direct), driver.open(t, database)
			client.store = openWith(t, client, sqlinbox.Config{InFlightWait: 500 * time.Millisecond, DoneTTL: -1})
			receiver := client.receive(t, 1)
			receiver.deliver(t, inbox.NewUUID(), inbox.OutcomeProcessed) // warm

			id := inbox.NewUUID()
			reached, stop, left := make(chan struct{}), make(chan struct{}), make(chan error, 1)
			leave := sync.OnceFunc(func() { close(stop) })
			t.Cleanup(leave)
			holder.work = func(context.Context, string, int) error {
				close(reached)
				<-stop
				return nil
			}
			holding := holder.receive(t, 1)
			go func() {
				_, err := holding.handle(message.NewMessage(id, []byte(`{"order_id":42}`)))
				left <- err
			}()
			<-reached

			counts := count(proxy, func() {
				_, err := receiver.handle(message.NewMessage(id, []byte(`{"order_id":42}`)))
				require.ErrorIs(t, err, inbox.ErrInFlight)
			})
			log := proxy.Log()
			number := func(part string) (n int) {
				for _, statement := range log {
					if strings.Contains(strings.ToLower(statement), part) {
						n++
					}
				}
				return n
			}
			probes := number("select pg_try_advisory")
			require.Greater(t, probes, 4, "statements: %q", log)
			require.Equal(t, 1, number("begin"))
			require.Equal(t, 1, number("insert into"))
			require.Equal(t, inboxtest.Counts{RoundTrips: claim[driver.name] + probes, Statements: 5 + 2*probes}, counts, "statements: %q", log)
			t.Logf("%s; %d probes", describe(counts), probes)

			leave()
			require.NoError(t, <-left)
			receiver.deliver(t, id, inbox.OutcomeDuplicate)
		})
	}
}

func openWith(t *testing.T, c client, config sqlinbox.Config) inbox.Store {
	t.Helper()
	store, err := c.open(config)
	require.NoError(t, err)
	return store
}
