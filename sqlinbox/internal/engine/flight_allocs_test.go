package engine

import (
	"context"
	"encoding/binary"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	inbox "github.com/watermill-contrib/watermill-inbox"
)

// What flight and the done keys take for a message: the entry of the done keys, and nothing to look at it or to go alone.
func TestFlightAndDoneKeys_Allocations(t *testing.T) { // not parallel: it counts for the whole program
	var f flight
	d := newDoneKeys(64, time.Minute)
	ctx, key := context.Background(), inbox.Key{Consumer: "charge", ID: "42"}
	n := uint64(0)
	next := func() (storage inbox.StorageKey) {
		n++
		binary.BigEndian.PutUint64(storage[:], n)
		return storage
	}
	message := func() {
		storage := next()
		_, _ = d.get(storage, key)
		_, _ = f.enter(ctx, storage, time.Second)
		_, _ = d.get(storage, key)
		d.add(0, storage, key, inbox.Fingerprint{}, false)
		f.leave(storage)
	}
	for range 1000 {
		message()
	}
	require.LessOrEqual(t, testing.AllocsPerRun(1000, message), 1.0)
	storage := next()
	d.add(0, storage, key, inbox.Fingerprint{}, false)
	require.Zero(t, testing.AllocsPerRun(1000, func() {
		if _, ok := d.get(storage, key); !ok {
			t.Error("not known")
		}
	}))
}
