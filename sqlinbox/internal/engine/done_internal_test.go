package engine

import (
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	inbox "github.com/watermill-contrib/watermill-inbox"
)

// Two messages with one storage key are two messages.
func TestDoneKeys_CompareTheWholeKey(t *testing.T) {
	t.Parallel()
	d := newDoneKeys(10, time.Minute)
	storage, key := inbox.StorageKey{1}, inbox.Key{Consumer: "charge", Source: "shop", ID: "42"}
	d.add(0, storage, key, inbox.Fingerprint{1}, false)
	known, ok := d.get(storage, key)
	require.True(t, ok)
	require.Equal(t, inbox.Fingerprint{1}, known.fingerprint)
	for _, other := range []inbox.Key{
		{Consumer: "mail", Source: "shop", ID: "42"},
		{Consumer: "charge", Source: "mall", ID: "42"},
		{Consumer: "charge", Source: "shop", ID: "43"},
		{},
	} {
		_, ok := d.get(storage, other)
		require.False(t, ok, other)
	}
}

func TestDoneKeys_Off(t *testing.T) {
	t.Parallel()
	for _, off := range []struct {
		size int
		ttl  time.Duration
	}{{0, time.Minute}, {10, 0}} {
		d := newDoneKeys(off.size, off.ttl)
		d.add(0, inbox.StorageKey{1}, inbox.Key{ID: "42"}, inbox.Fingerprint{}, false)
		_, ok := d.get(inbox.StorageKey{1}, inbox.Key{ID: "42"})
		require.False(t, ok)
		d.empty()
	}
}

// A key may come in while another goroutine empties: it is looked at before and after.
func TestDoneKeys_EmptiedWhileAKeyComesIn(t *testing.T) {
	t.Parallel()
	d := newDoneKeys(10, time.Minute)
	key := inbox.Key{ID: "42"}
	var turn, ready atomic.Uint64
	ended := make(chan struct{})
	const rounds = 10_000
	go func() {
		defer close(ended)
		for n := range uint64(rounds) {
			ready.Store(n + 1)
			spin(func() bool { return turn.Load() > n }) // both start together
			d.empty()
		}
	}()
	for n := range uint64(rounds) {
		spin(func() bool { return ready.Load() > n })
		epoch := d.epoch.Load()
		turn.Store(n + 1)
		d.add(epoch, inbox.StorageKey{1}, key, inbox.Fingerprint{}, false)
		spin(func() bool { return d.epoch.Load() > n }) // emptied
		if _, ok := d.get(inbox.StorageKey{1}, key); ok && !justBeforeThePurge(&d, key) {
			t.Fatalf("round %d: a key of the time before", n)
		}
	}
	<-ended
}

// spin waits without sleeping, for two goroutines that are to meet.
func spin(until func() bool) {
	for i := 1; !until(); i++ {
		if i%1000 == 0 { // there may be one processor only
			runtime.Gosched()
		}
	}
}

// justBeforeThePurge waits for a purge that follows the new epoch.
func justBeforeThePurge(d *doneKeys, key inbox.Key) bool {
	for range 1000 {
		if _, ok := d.get(inbox.StorageKey{1}, key); !ok {
			return true
		}
		time.Sleep(10 * time.Microsecond)
	}
	return false
}
