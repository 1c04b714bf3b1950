package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"runtime/pprof"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	inbox "github.com/watermill-contrib/watermill-inbox"
)

// remembered is how many handled messages each worker of a duplicates comparison delivers again in turn. They are its
// own: two copies in flight at once would be another matter.
const remembered = 200

// result is what one contender did, round by round.
type result struct {
	contender contender
	rates     []float64 // messages a second
	ratios    []float64 // to the contender that it is measured against, in the same round
}

// measure runs all rounds of a comparison.
func measure(ctx context.Context, dsn string, c comparison, s settings) ([]result, error) {
	entrants := make([]*entrant, len(c.contenders))
	for i, one := range c.contenders {
		a, err := newArena(ctx, dsn, cmp.Or(c.conns, c.atOnce), c.latency)
		if err != nil {
			return nil, err
		}
		defer a.close()
		if entrants[i], err = enter(ctx, a, c, one); err != nil {
			return nil, err
		}
	}
	results := make([]result, len(entrants))
	for range s.rounds {
		rates := map[string]float64{}
		for _, i := range rand.Perm(len(entrants)) {
			// The first messages after a pause are not counted: connections are looked at, caches are cold.
			if _, err := entrants[i].work(ctx, s.slot/10); err != nil {
				return nil, err
			}
			rate, err := entrants[i].work(ctx, s.slot)
			if err != nil {
				return nil, err
			}
			rates[entrants[i].name] = rate
		}
		for i, e := range entrants {
			results[i].contender = e.contender
			results[i].rates = append(results[i].rates, rates[e.name])
			if e.against != "" {
				results[i].ratios = append(results[i].ratios, rates[e.name]/rates[e.against])
			}
		}
	}
	for _, e := range entrants {
		if err := e.check(ctx); err != nil {
			return nil, err
		}
	}
	return results, nil
}

// entrant is a contender that is ready to work.
type entrant struct {
	contender
	arena  *arena
	handle handle
	ids    [][]string // by worker, of handled messages; nil: the messages are new
	atOnce int
	copies int
	made   atomic.Int64 // new messages
}

func enter(ctx context.Context, a *arena, c comparison, one contender) (*entrant, error) {
	h, err := one.setup(ctx, a)
	if err != nil {
		return nil, err
	}
	e := &entrant{contender: one, arena: a, handle: h, atOnce: c.atOnce, copies: c.copies}
	if !c.duplicates {
		return e, nil
	}
	ids := make([][]string, c.atOnce)
	for worker := range ids {
		for range remembered {
			id := e.newID()
			if err := deliver(ctx, h, id); err != nil {
				return nil, err
			}
			ids[worker] = append(ids[worker], id)
		}
	}
	e.ids = ids
	return e, nil
}

// work handles messages for a while, as many at once as the comparison says, and gives the rate.
func (e *entrant) work(ctx context.Context, during time.Duration) (rate float64, err error) {
	runtime.GC() // everyone begins without the garbage of the one before
	var (
		wg    sync.WaitGroup
		count atomic.Int64
		errs  = make([]error, e.atOnce)
		begin = time.Now()
	)
	for worker := range e.atOnce {
		wg.Go(func() {
			pprof.Do(ctx, pprof.Labels("contender", e.name), func(ctx context.Context) {
				for n := 0; errs[worker] == nil && time.Since(begin) < during; n++ {
					errs[worker] = e.deliver(ctx, e.id(worker, n))
					count.Add(1)
				}
			})
		})
	}
	wg.Wait()
	return float64(count.Load()) / time.Since(begin).Seconds(), errors.Join(errs...)
}

func (e *entrant) id(worker, n int) string {
	if e.ids == nil {
		return e.newID()
	}
	return e.ids[worker][n%len(e.ids[worker])]
}

func (e *entrant) newID() string {
	e.made.Add(1)
	return inbox.NewUUID()
}

// check fails unless each message, or each repeated operation, was handled once: a contender that does less than it should
// would look fast.
func (e *entrant) check(ctx context.Context) error {
	var effects, messages int64
	err := e.arena.admin.QueryRow(ctx, "SELECT count(*), count(DISTINCT message_id) FROM effects").Scan(&effects, &messages)
	if err != nil {
		return err
	}
	made := e.made.Load()
	if e.repeated {
		made = min(made, int64(e.arena.conns))
	}
	if effects != made || messages != made {
		return fmt.Errorf("%s: %d messages, %d handled, %d effects", e.name, made, messages, effects)
	}
	return nil
}

func (e *entrant) deliver(ctx context.Context, id string) error {
	if e.copies > 1 {
		return deliverCopies(ctx, e.handle, id, e.copies)
	}
	return deliver(ctx, e.handle, id)
}

// deliver hands over a message as subscribers make it, with a context that can be cancelled.
func deliver(ctx context.Context, h handle, id string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	msg := newMessage(id)
	msg.SetContext(ctx)
	return h(msg)
}

func newMessage(id string) *message.Message {
	return message.NewMessage(id, []byte(`{"order_id":42,"amount":"12.50","currency":"EUR"}`))
}
