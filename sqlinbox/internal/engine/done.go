package engine

import (
	"sync/atomic"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	inbox "github.com/watermill-contrib/watermill-inbox"
)

// doneKeys remembers messages that are known to be handled, so that later copies are answered without the database. It
// knows nothing that the database did not say first: a key enters after an acknowledged COMMIT or a duplicate that was
// read. What could have been taken back since (a fail-over to a server that is behind, a database that was rewound)
// shows as a lost or a new connection, and empties it; what neither shows is bounded by the time to live.
type doneKeys struct {
	cache *lru.Cache[inbox.StorageKey, done] // nil: off
	ttl   time.Duration
	// epoch counts the times it was emptied. A key whose claim began before that must not enter after it: its COMMIT
	// may have been on the server that was lost.
	epoch atomic.Uint64
}

// done is what is known of a handled message. Everything of the key is there: 16 bytes may collide.
type done struct {
	key         inbox.Key
	fingerprint inbox.Fingerprint
	recorded    bool // messages may have to be given back: only the database has them
	until       time.Time
}

func newDoneKeys(size int, ttl time.Duration) doneKeys {
	if size <= 0 || ttl <= 0 {
		return doneKeys{}
	}
	cache, _ := lru.New[inbox.StorageKey, done](size) // fails only for a size that is not positive
	return doneKeys{cache: cache, ttl: ttl}
}

// get gives what is known of a message that needs no database.
func (d *doneKeys) get(storage inbox.StorageKey, key inbox.Key) (done, bool) {
	if d.cache == nil {
		return done{}, false
	}
	known, ok := d.cache.Get(storage)
	if !ok || known.recorded || known.key != key || time.Now().After(known.until) {
		return done{}, false
	}
	return known, true
}

// add remembers a message whose claim began in the given epoch.
func (d *doneKeys) add(epoch uint64, storage inbox.StorageKey, key inbox.Key, fingerprint inbox.Fingerprint, recorded bool) {
	if d.cache == nil || d.epoch.Load() != epoch {
		return
	}
	d.cache.Add(storage, done{key: key, fingerprint: fingerprint, recorded: recorded, until: time.Now().Add(d.ttl)})
	if d.epoch.Load() != epoch { // emptied in between, and this key may have come after it
		d.cache.Remove(storage)
	}
}

// remember notes that the message is handled.
func (p *process) remember(fingerprint inbox.Fingerprint, recorded bool) {
	p.done.add(p.epoch, p.key, p.d.Key, fingerprint, recorded)
}

// answer is the result for a message that is known to be handled.
func (p *process) answer(known done) (inbox.Result, error) {
	if err := p.compare(known.fingerprint); err != nil {
		return p.result, p.fail(inbox.PhaseClaim, err)
	}
	p.result.Outcome = inbox.OutcomeDuplicate
	return p.result, nil
}

// empty forgets everything.
func (d *doneKeys) empty() {
	if d.cache == nil {
		return
	}
	d.epoch.Add(1)
	d.cache.Purge()
}
