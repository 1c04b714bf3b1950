package main

import (
	"context"
	"regexp"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// contender is one way of handling a message.
type contender struct {
	name string
	// against is the contender whose rate is 1; empty for that one itself.
	against string
	// goal is the ratio to reach; 0 is none.
	goal float64
	// setup makes its tables in the arena's schema and gives what handles one message, called by many at once.
	setup func(ctx context.Context, a *arena) (handle, error)
}

type handle func(msg *message.Message) error

// comparison is a table of contenders that do the same work under the same conditions.
type comparison struct {
	name       string
	atOnce     int
	latency    time.Duration // added to each round trip
	duplicates bool          // the messages were handled before
	contenders []contender
}

// comparisons lists what is measured. A new row is a contender in one of the lists.
func comparisons() []comparison {
	return []comparison{
		{name: "first deliveries, 0.5 ms network, 8 at once", atOnce: 8, latency: 500 * time.Microsecond, contenders: firstDeliveries(0.95)},
		{name: "what travels with COMMIT, 0.5 ms network, 8 at once", atOnce: 8, latency: 500 * time.Microsecond, contenders: atCommit()},
		{name: "first deliveries, loopback, 8 at once", atOnce: 8, contenders: firstDeliveries(0.65)},
		{name: "first deliveries, loopback, 32 at once", atOnce: 32, contenders: firstDeliveries(0.65)},
		{name: "duplicates, 0.5 ms network, 8 at once", atOnce: 8, latency: 500 * time.Microsecond, duplicates: true, contenders: duplicates()},
		{name: "duplicates, loopback, 8 at once", atOnce: 8, duplicates: true, contenders: duplicates()},
	}
}

func firstDeliveries(goal float64) []contender {
	return []contender{
		{name: "pgx, bare transaction", setup: barePgx},
		{name: "pgx, textbook", against: "pgx, bare transaction", setup: textbook},
		{name: "pgx, inbox", against: "pgx, bare transaction", goal: goal, setup: inboxPgx},
		{name: "database/sql, bare transaction", setup: bareSQL},
		{name: "database/sql, inbox", against: "database/sql, bare transaction", setup: inboxSQL},
	}
}

func atCommit() []contender {
	return []contender{
		{name: "pgx, bare transaction", setup: barePgx},
		{name: "pgx, inbox", against: "pgx, bare transaction", setup: inboxPgx},
		{name: "pgx, inbox, the write with COMMIT", against: "pgx, bare transaction", goal: 1.25, setup: inboxAtCommit},
		{name: "pgx, inbox, five outbox messages with COMMIT", against: "pgx, inbox", goal: 0.90, setup: inboxOutbox},
	}
}

func duplicates() []contender {
	return []contender{
		{name: "pgx, textbook", setup: textbook},
		{name: "pgx, textbook, unique violation caught", against: "pgx, textbook", setup: textbookCaught},
		{name: "pgx, inbox", against: "pgx, textbook", setup: inboxPgx},
		{name: "database/sql, inbox", against: "pgx, textbook", setup: inboxSQL},
	}
}

// counted lists the contenders whose round trips, statements and log are counted.
func counted() []contender {
	return []contender{
		{name: "pgx, bare transaction", setup: barePgx},
		{name: "pgx, textbook", setup: textbook},
		{name: "pgx, inbox", setup: inboxPgx},
		{name: "database/sql, bare transaction", setup: bareSQL},
		{name: "database/sql, inbox", setup: inboxSQL},
	}
}

// chosen keeps the contenders that match, with those they are measured against.
func chosen(all []comparison, only *regexp.Regexp) []comparison {
	var some []comparison
	for _, c := range all {
		wanted := map[string]bool{}
		for _, one := range c.contenders {
			if only.MatchString(c.name + "/" + one.name) {
				wanted[one.name], wanted[one.against] = true, true
			}
		}
		c.contenders = slices.DeleteFunc(c.contenders, func(one contender) bool { return !wanted[one.name] })
		if len(c.contenders) > 0 {
			some = append(some, c)
		}
	}
	return some
}

func chosenContenders(all []contender, only *regexp.Regexp) []contender {
	return slices.DeleteFunc(all, func(one contender) bool { return !only.MatchString("count/" + one.name) })
}
