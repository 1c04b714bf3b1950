package queue

import (
	"context"
	"errors"
	"slices"
	"sync"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox/internal/engine"
)

// mostTogether is how many messages one statement stores.
const mostTogether = 100

// intake joins concurrent calls into one statement without any delay: while one is on its way, the others collect. A
// caller that is alone stores in its own goroutine, so it pays nothing.
type intake struct {
	engine  *engine.Engine
	backend Backend
	wake    *wakers

	mu      sync.Mutex
	waiting []*call
	leading bool // one of the callers is storing
}

// call is one caller with its entries.
type call struct {
	entries []inbox.Entry
	answers []inbox.Stored
	// turn is closed when the answers are there, or with lead when this caller is to store for those who wait.
	turn chan struct{}
	lead bool
}

// Enqueue is inbox.QueueStore's Enqueue.
func (q *intake) Enqueue(ctx context.Context, entries []inbox.Entry) []inbox.Stored {
	if tx, err := q.engine.TxFor(ctx); tx != nil || err != nil {
		return q.enqueueIn(ctx, tx, entries, err)
	}
	c := &call{entries: entries, turn: make(chan struct{})}
	q.mu.Lock()
	q.waiting = append(q.waiting, c)
	if q.leading {
		q.mu.Unlock()
		<-c.turn
		if !c.lead {
			return c.answers
		}
		q.mu.Lock()
	}
	q.leading = true
	batch := q.take()
	q.mu.Unlock()

	defer q.handOver(c, batch)
	q.store(ctx, batch)
	return c.answers
}

// errStore answers entries whose storing was left by a panic.
var errStore = errors.New("storing was broken off")

// handOver answers the others of the batch, and lets the first of those who wait store next.
func (q *intake) handOver(c *call, batch []*call) {
	q.mu.Lock()
	q.leading = false
	if len(q.waiting) > 0 {
		q.leading = true
		q.waiting[0].lead = true
		close(q.waiting[0].turn)
	}
	q.mu.Unlock()
	for _, other := range batch {
		for i := range other.answers {
			if a := &other.answers[i]; a.Outcome == "" && a.Err == nil {
				a.Err = q.fail(other.entries[i], errStore)
			}
		}
		if other != c {
			close(other.turn)
		}
	}
}

// take gives the calls that go into one statement; the first one always does.
func (q *intake) take() []*call {
	n, entries := 0, 0
	for n < len(q.waiting) && (n == 0 || entries+len(q.waiting[n].entries) <= mostTogether) {
		entries += len(q.waiting[n].entries)
		n++
	}
	batch := append([]*call(nil), q.waiting[:n]...)
	q.waiting = append(q.waiting[:0], q.waiting[n:]...)
	return batch
}

// pending is an entry on its way into the queue.
type pending struct {
	item   *Item
	entry  inbox.Entry
	answer *inbox.Stored
}

// store stores the entries of all calls and answers each. The statement is not bound to the context of a single caller,
// but to a time: a server that does not answer must not keep all of them waiting.
func (q *intake) store(ctx context.Context, batch []*call) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), engine.DefaultCommitTimeout)
	defer cancel()
	var all []*pending
	first := map[inbox.StorageKey]bool{}
	var copies []*pending
	for _, c := range batch { // first, so that whatever happens each has an answer
		c.answers = make([]inbox.Stored, len(c.entries))
	}
	for _, c := range batch {
		for i, entry := range c.entries {
			p := &pending{entry: entry, answer: &c.answers[i]}
			if err := q.prepare(ctx, p); err != nil {
				p.answer.Err = q.fail(entry, err)
				continue
			}
			if first[p.item.Claim.Key] {
				copies = append(copies, p)
				continue
			}
			first[p.item.Claim.Key] = true
			all = append(all, p)
		}
	}
	q.storeSome(ctx, all)
	for _, p := range copies { // of a message of this batch: the database tells what became of it
		q.classify(ctx, p)
	}
}

// prepare makes the item of an entry.
func (q *intake) prepare(ctx context.Context, p *pending) error {
	d := p.entry.Delivery
	claim, err := q.engine.ClaimFor(ctx, d)
	if err != nil {
		return err
	}
	p.item = &Item{
		Claim:    claim,
		Consumer: engine.ConsumerID(d.Key.Consumer),
		Lane:     q.engine.Lane(d.Key.Consumer, p.entry.OrderKey),
		Message:  engine.EncodeMessage(p.entry.Message),
	}
	return nil
}

// storeSome stores entries with different keys. An error that one of them may have caused is brought home to it by
// halving.
func (q *intake) storeSome(ctx context.Context, some []*pending) {
	if len(some) == 0 {
		return
	}
	stored, err := q.backend.Store(ctx, itemsOf(some))
	if err != nil {
		if len(some) > 1 && q.engine.MayBeOneRow(err) {
			q.storeSome(ctx, some[:len(some)/2])
			q.storeSome(ctx, some[len(some)/2:])
			return
		}
		for _, p := range some {
			p.answer.Err = q.fail(p.entry, q.engine.StoreError(err))
		}
		return
	}
	consumers := map[inbox.StorageKey]bool{}
	for i, p := range some {
		if stored[i] {
			p.answer.Outcome = inbox.OutcomeStored
			consumers[p.item.Consumer] = true
		}
	}
	for consumer := range consumers {
		q.wake.wake(consumer)
	}
	for i, p := range some {
		if !stored[i] {
			q.classify(ctx, p)
		}
	}
}

// classify tells what a message is that was not stored.
func (q *intake) classify(ctx context.Context, p *pending) {
	result, err := q.engine.Classify(ctx, p.entry.Delivery, p.item.Claim)
	q.answer(p, result, err)
}

func (q *intake) answer(p *pending, result inbox.Result, err error) {
	if err != nil {
		p.answer.Err = q.fail(p.entry, err)
		return
	}
	p.answer.Outcome, p.answer.Mismatch = result.Outcome, result.Mismatch
}

// enqueueIn is Enqueue in an open transaction: all entries are stored with it, or an error makes it roll back.
func (q *intake) enqueueIn(ctx context.Context, tx engine.StoreTx, entries []inbox.Entry, err error) []inbox.Stored {
	answers := make([]inbox.Stored, len(entries))
	all, first := make([]*pending, 0, len(entries)), map[inbox.StorageKey]bool{}
	var copies []*pending
	for i, entry := range entries {
		p := &pending{entry: entry, answer: &answers[i]}
		if err == nil {
			err = q.prepare(ctx, p)
		}
		if err != nil {
			p.answer.Err = q.fail(entry, err)
			continue
		}
		if first[p.item.Claim.Key] {
			copies = append(copies, p)
			continue
		}
		first[p.item.Claim.Key] = true
		all = append(all, p)
	}
	if err != nil {
		return answers
	}
	q.storeIn(ctx, tx, all)
	for _, p := range copies {
		q.classifyIn(ctx, tx, p)
	}
	return answers
}

var errOrderLevel = errors.New("messages with an order key can be stored in a transaction at READ COMMITTED only, which sees what stands before them: leave Config.Isolation at its default, or publish outside the transaction")

// storeIn stores entries with different keys in an open transaction, and answers each.
func (q *intake) storeIn(ctx context.Context, tx engine.StoreTx, some []*pending) {
	items := itemsOf(some)
	var stored []bool
	var err error
	if slices.ContainsFunc(items, func(i *Item) bool { return i.Lane != 0 }) && !tx.KeepsOrder() {
		err = errOrderLevel
	} else {
		stored, err = tx.StoreItems(ctx, items)
	}
	if err == nil {
		q.engine.AfterCommit(ctx, func() { q.wake.wakeAll(items) })
	}
	for i, p := range some {
		switch {
		case errors.Is(err, errOrderLevel):
			p.answer.Err = q.fail(p.entry, err)
		case err != nil:
			p.answer.Err = q.fail(p.entry, q.engine.StoreError(err))
		case stored[i]:
			p.answer.Outcome = inbox.OutcomeStored
		default:
			q.classifyIn(ctx, tx, p)
		}
	}
}

func (q *intake) classifyIn(ctx context.Context, tx engine.StoreTx, p *pending) {
	result, err := q.engine.ClassifyBy(ctx, tx, p.entry.Delivery, p.item.Claim)
	q.answer(p, result, err)
}

func itemsOf(some []*pending) []*Item {
	items := make([]*Item, len(some))
	for i, p := range some {
		items[i] = p.item
	}
	return items
}

func (q *intake) fail(entry inbox.Entry, err error) error {
	return &inbox.Error{Phase: inbox.PhaseStore, Key: entry.Delivery.Key, Handler: entry.Delivery.Handler, Err: err}
}
