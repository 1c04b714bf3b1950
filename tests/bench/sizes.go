package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox/pgxinbox"
)

// sizing is how claim time against table size is measured.
type sizing struct {
	rows   []int
	rounds int
	turn   int // claims of one table in one round
}

func newSizing(quick bool) sizing {
	if quick {
		return sizing{rows: []int{0, 20_000, 100_000}, rounds: 10, turn: 50}
	}
	return sizing{rows: []int{0, 1_000_000, 5_000_000}, rounds: 50, turn: 100}
}

// idForm is a kind of message ids, and how the memory of many of them looks. A load gives rows in the order in which
// they were received, in the last week.
type idForm struct {
	name string
	next func() string
	key  string // SQL of the storage key for the row number i, received at at
}

func idForms() []idForm {
	return []idForm{
		{"random (UUIDv4)", watermill.NewUUID, "('00' || right(md5(i::text), 30))::uuid"},
		{
			"time-ordered (UUIDv7)", inbox.NewUUID,
			"(lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0') || right(md5(i::text), 20))::uuid",
		},
	}
}

// sized is a memory of one size.
type sized struct {
	ids    idForm
	rows   int
	arena  *arena
	handle handle

	took []time.Duration // claim and commit, one message at a time
	wal  float64         // bytes of a message after a checkpoint; 0: unknown
}

// measureSizes loads all tables, then lets them take turns, then looks at what each writes after a checkpoint.
func measureSizes(ctx context.Context, dsn string, s sizing) ([]*sized, error) {
	var all []*sized
	for _, ids := range idForms() {
		for _, rows := range s.rows {
			a, err := newArena(ctx, dsn, 1, 0)
			if err != nil {
				return nil, err
			}
			defer a.close()
			one := &sized{ids: ids, rows: rows, arena: a}
			if err := one.setup(ctx); err != nil {
				return nil, fmt.Errorf("%s, %d rows: %w", ids.name, rows, err)
			}
			all = append(all, one)
		}
	}
	if _, err := all[0].arena.admin.Exec(ctx, "CHECKPOINT"); err != nil {
		return nil, err
	}
	for range s.rounds {
		for _, i := range rand.Perm(len(all)) {
			if err := all[i].turn(ctx, s.turn); err != nil {
				return nil, err
			}
		}
	}
	for _, one := range all {
		var err error
		if one.wal, err = one.walAfterCheckpoint(ctx); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// setup loads the memory and makes a handler that does nothing, so that only the claim and COMMIT are left.
func (s *sized) setup(ctx context.Context) error {
	store, err := pgxStore(ctx, s.arena, pgxinbox.Config{})
	if err != nil {
		return err
	}
	if s.handle, err = behind(store, func(*message.Message) error { return nil }); err != nil {
		return err
	}
	load := fmt.Sprintf(`
INSERT INTO watermill_inbox (key, fingerprint, received_at, processed_at, consumer, source, message_id, topic)
SELECT %s, md5(i::text)::uuid, at, at, $2::text, '', gen_random_uuid()::text, 'orders.placed'
FROM generate_series(1, $1::int) AS i, LATERAL (SELECT now() - interval '7 days' * (1 - (i - 1) / $1::float8)) AS made(at)`, s.ids.key)
	if _, err := s.arena.admin.Exec(ctx, "ALTER TABLE watermill_inbox SET (autovacuum_enabled = false)"); err != nil {
		return err // it would come while claims are timed
	}
	if _, err := s.arena.admin.Exec(ctx, load, s.rows, consumer); err != nil {
		return err
	}
	_, err = s.arena.admin.Exec(ctx, "VACUUM (ANALYZE) watermill_inbox")
	return err
}

func (s *sized) turn(ctx context.Context, claims int) error {
	for range max(1, claims/10) { // not counted: the caches have another table
		if err := deliver(ctx, s.handle, s.ids.next()); err != nil {
			return err
		}
	}
	for range claims {
		id, begin := s.ids.next(), time.Now()
		if err := deliver(ctx, s.handle, id); err != nil {
			return err
		}
		s.took = append(s.took, time.Since(begin))
	}
	return nil
}

func (s *sized) walAfterCheckpoint(ctx context.Context) (perMessage float64, err error) {
	if _, err := s.arena.admin.Exec(ctx, "CHECKPOINT"); err != nil {
		return 0, err
	}
	return wal(ctx, s.arena, withImages, func() error { return deliver(ctx, s.handle, s.ids.next()) })
}

func (s *sized) quantile(part float64) float64 { return quantile(s.took, part) }

// quantile is the time that the given part of all did not take longer than, in microseconds.
func quantile(took []time.Duration, part float64) float64 {
	sorted := slices.Sorted(slices.Values(took))
	return float64(sorted[int(part*float64(len(sorted)-1))].Nanoseconds()) / 1000
}
