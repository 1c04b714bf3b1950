package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/watermill-contrib/watermill-inbox/sqlinbox"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox/pgxinbox"
)

// leasing is how lease time against queue size is measured.
type leasing struct {
	rows   []int // waiting; the first is what the others are compared with
	rounds int
	turn   int // leases of one queue in one round
}

func newLeasing(quick bool) leasing {
	if quick {
		return leasing{rows: []int{1_000, 10_000, 100_000}, rounds: 5, turn: 4}
	}
	return leasing{rows: []int{1_000, 100_000, 1_000_000}, rounds: 21, turn: 5}
}

// queueForm is what a queue is full of: SQL of the columns of the row number i, of which one in two is odd.
type queueForm struct {
	name             string
	goal             float64 // the ratio to stay below
	lane, state, due string
	extra            int // rows that do not wait, beside each that does
}

// overdue is the due time of a row that can be leased, all of them in the order of their numbers.
const overdue = "now() - interval '1 hour' + i * interval '1 millisecond'"

func queueForms() []queueForm {
	return []queueForm{
		{name: "all ready", goal: 2, lane: "NULL", state: "0", due: overdue},
		{name: "half in back-off", goal: 2, lane: "NULL", state: "0", due: "CASE i % 2 WHEN 0 THEN " + overdue + " ELSE now() + interval '2 days' + i * interval '1 millisecond' END"},
		{name: "all ready, as many dead", goal: 2, lane: "NULL", state: "CASE i % 2 WHEN 0 THEN 0 ELSE 2 END", due: "CASE i % 2 WHEN 0 THEN " + overdue + " END", extra: 1},
		{name: "half with one order key", goal: 2.5, lane: "CASE i % 2 WHEN 1 THEN 42 END", state: "0", due: "CASE WHEN i % 2 = 0 OR i = 1 THEN " + overdue + " END"},
	}
}

// sizedQueue is a queue of one form and size.
type sizedQueue struct {
	form    queueForm
	rows    int
	arena   *arena
	explain string // the statement that leases

	took     []time.Duration // planning and execution
	planning []time.Duration
	buffers  []float64
}

// measureLeases loads all queues, then lets them take turns.
func measureLeases(ctx context.Context, dsn string, l leasing) ([]*sizedQueue, error) {
	var all []*sizedQueue
	for _, form := range queueForms() {
		for _, rows := range l.rows {
			a, err := newArena(ctx, dsn, 2, 0)
			if err != nil {
				return nil, err
			}
			defer a.close()
			one := &sizedQueue{form: form, rows: rows, arena: a}
			if err := one.setup(ctx); err != nil {
				return nil, fmt.Errorf("%s, %d rows: %w", form.name, rows, err)
			}
			all = append(all, one)
		}
	}
	if _, err := all[0].arena.admin.Exec(ctx, "CHECKPOINT"); err != nil {
		return nil, err
	}
	for range l.rounds {
		for _, i := range rand.Perm(len(all)) {
			if err := all[i].takeTurn(ctx, l.turn); err != nil {
				return nil, err
			}
		}
	}
	return all, nil
}

func (q *sizedQueue) setup(ctx context.Context) error {
	sql, args, err := leaseStatement(ctx, q.arena)
	if err != nil {
		return err
	}
	literals := make([]string, len(args))
	for i, arg := range args {
		literals[i] = literal(arg)
	}
	q.explain = "EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) EXECUTE lease (" + strings.Join(literals, ", ") + ")"
	for _, statement := range []string{
		"ALTER TABLE watermill_inbox SET (autovacuum_enabled = false)", // it would come while leases are timed
		"ALTER TABLE watermill_inbox_queue SET (autovacuum_enabled = false)",
		fmt.Sprintf(`
INSERT INTO watermill_inbox (key, fingerprint, received_at, processed_at, consumer, source, message_id, topic)
SELECT %s, md5(i::text)::uuid, now(), NULL, '%s', '', gen_random_uuid()::text, 'orders.placed'
FROM generate_series(1, %d) AS i`, keyOf, consumer, q.all()),
		fmt.Sprintf(`
INSERT INTO watermill_inbox_queue (key, consumer_id, lane, state, due_at, message)
SELECT %s, %s, %s, %s, %s, decode(repeat(md5(i::text), 8), 'hex')
FROM generate_series(1, %d) AS i ORDER BY i`, keyOf, literals[0], q.form.lane, q.form.state, q.form.due, q.all()),
		"VACUUM (ANALYZE) watermill_inbox",
		"VACUUM (ANALYZE) watermill_inbox_queue",
		"PREPARE lease AS " + sql,
	} {
		if _, err := q.arena.admin.Exec(ctx, statement, pgx.QueryExecModeSimpleProtocol); err != nil {
			return err
		}
	}
	return nil
}

// all is how many rows there are.
func (q *sizedQueue) all() int { return q.rows * (1 + q.form.extra) }

// keyOf is the storage key of the row number i, one after the other as those of time-ordered ids are.
const keyOf = "('01' || lpad(to_hex(i), 10, '0') || right(md5(i::text), 20))::uuid"

// leaseTime keeps the traces of a lease that was rolled back out of the ready rows as long as this may run.
const leaseTime = 24 * time.Hour

// leaseStatement is what the inbox's own subscriber sends, with its values.
func leaseStatement(ctx context.Context, a *arena) (sql string, args []any, err error) {
	type statement struct {
		sql  string
		args []any
	}
	leases := make(chan statement, 1)
	a.config.Tracer = &watcher{query: func(sql string, args []any) {
		if !strings.Contains(sql, "FOR UPDATE SKIP LOCKED") || !strings.Contains(sql, "unfinished") {
			return
		}
		var values []any
		for _, arg := range args {
			switch arg.(type) {
			case nil, string, int, int64: // the others are options of pgx
				values = append(values, arg)
			}
		}
		select {
		case leases <- statement{sql, values}:
		default:
		}
	}}
	store, err := pgxStore(ctx, a, pgxinbox.Config{})
	if err != nil {
		return "", nil, err
	}
	subscriber, err := store.NewSubscriber(sqlinbox.SubscriberConfig{LeaseTime: leaseTime})
	if err != nil {
		return "", nil, err
	}
	defer subscriber.Close() //nolint:errcheck // never fails
	if _, err := subscriber.Subscribe(ctx, consumer); err != nil {
		return "", nil, err
	}
	select {
	case lease := <-leases:
		return lease.sql, lease.args, nil
	case <-time.After(10 * time.Second):
		return "", nil, errNoLease
	}
}

// errNoLease: the subscriber sent nothing that looks like a lease.
var errNoLease = errors.New("no lease was seen")

func literal(value any) string {
	switch v := value.(type) {
	case nil:
		return "NULL"
	case string:
		return "'" + v + "'" // a UUID
	default:
		return fmt.Sprint(v)
	}
}

// takeTurn leases and rolls back, and clears the traces away.
func (q *sizedQueue) takeTurn(ctx context.Context, leases int) error {
	for n := range 1 + leases {
		plan, err := q.lease(ctx)
		if err != nil {
			return err
		}
		if n == 0 { // the caches have another queue
			continue
		}
		q.took = append(q.took, milliseconds(plan.Planning+plan.Execution))
		q.planning = append(q.planning, milliseconds(plan.Planning))
		q.buffers = append(q.buffers, plan.Plan.Hit+plan.Plan.Read)
	}
	_, err := q.arena.admin.Exec(ctx, "VACUUM (INDEX_CLEANUP ON) watermill_inbox_queue")
	return err
}

// plan is what EXPLAIN gives: milliseconds, and buffers with those of all nodes inside.
type plan struct {
	Plan struct {
		Rows float64 `json:"Actual Rows"`
		Hit  float64 `json:"Shared Hit Blocks"`
		Read float64 `json:"Shared Read Blocks"`
	}
	Planning  float64 `json:"Planning Time"`
	Execution float64 `json:"Execution Time"`
}

func milliseconds(ms float64) time.Duration { return time.Duration(ms * float64(time.Millisecond)) }

func (q *sizedQueue) lease(ctx context.Context) (plan, error) {
	tx, err := q.arena.admin.Begin(ctx)
	if err != nil {
		return plan{}, err
	}
	defer tx.Rollback(ctx) //nolint:errcheck // nothing is to stay
	var text string
	if err := tx.QueryRow(ctx, q.explain, pgx.QueryExecModeSimpleProtocol).Scan(&text); err != nil {
		return plan{}, err
	}
	var plans []plan
	if err := json.Unmarshal([]byte(text), &plans); err != nil {
		return plan{}, err
	}
	if len(plans) != 1 || plans[0].Plan.Rows == 0 {
		return plan{}, errNothingLeased
	}
	return plans[0], nil
}

// errNothingLeased: an empty lease would look fast.
var errNothingLeased = errors.New("nothing was leased")
