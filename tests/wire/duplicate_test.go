package wire

import (
	"testing"

	"github.com/stretchr/testify/require"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/tests/services"
)

// startQuiet starts a server that writes no log by itself: no checkpoint, no vacuum, no snapshots for a standby. So
// every byte of its log, and every transaction id, is a client's.
func startQuiet(t *testing.T) *services.Instance {
	t.Helper()
	return services.StartPostgreSQL(t,
		"autovacuum=off", "checkpoint_timeout=1d", "max_wal_size=4GB", "wal_level=minimal", "max_wal_senders=0")
}

// trace is what many repetitions of something left behind in the server.
type trace struct {
	wal  int64 // bytes of the write-ahead log
	xids bool  // transaction ids were used up
	rows int64 // places of the memory table taken up by rows that are not there
}

// traceOf runs something that is not to leave a trace; insert puts one more row into the memory table.
//
// A row that was inserted and undone keeps its place in its page until the page is vacuumed, which nobody does here: the
// row of the next insert comes behind it.
func traceOf(t *testing.T, d *database, something, insert func()) trace {
	t.Helper()
	const lastPlace = "SELECT split_part(trim(')' FROM max(ctid)::text), ',', 2)::bigint FROM watermill_inbox"
	place, wal, xid := d.number(t, lastPlace), d.wal(t), d.nextXID(t)
	something()
	result := trace{wal: d.wal(t) - wal, xids: d.nextXID(t) != xid}
	insert()
	result.rows = d.number(t, lastPlace) - place - 1
	return result
}

func TestDuplicateWritesNothing(t *testing.T) {
	t.Parallel()
	server := startQuiet(t)
	for _, driver := range drivers() {
		t.Run(driver.name, func(t *testing.T) {
			database := newDatabase(t, server.DSN())
			receiver := driver.open(t, database).receive(t, 1)
			id := inbox.NewUUID()
			receiver.deliver(t, id, inbox.OutcomeProcessed)
			// The first read of a row may note in its page that it is committed, which servers with checksums log.
			receiver.deliver(t, id, inbox.OutcomeDuplicate)

			left := traceOf(t, database, func() {
				for range rounds {
					receiver.deliver(t, id, inbox.OutcomeDuplicate)
				}
			}, func() { receiver.deliver(t, inbox.NewUUID(), inbox.OutcomeProcessed) })
			require.Equal(t, trace{}, left)
		})
	}

	// What the inbox does not do: an insert that runs into the unique index and is rolled back.
	t.Run("a caught unique violation would be seen", func(t *testing.T) {
		database := newDatabase(t, server.DSN())
		receiver := openPgx(t, database).receive(t, 1)
		receiver.deliver(t, inbox.NewUUID(), inbox.OutcomeProcessed)

		left := traceOf(t, database, func() {
			for range rounds {
				_, err := database.admin.Exec(t.Context(), "INSERT INTO watermill_inbox SELECT * FROM watermill_inbox")
				require.ErrorContains(t, err, "23505")
			}
		}, func() { receiver.deliver(t, inbox.NewUUID(), inbox.OutcomeProcessed) })
		require.Positive(t, left.wal)
		require.True(t, left.xids)
		require.Equal(t, int64(rounds), left.rows)
	})
}
