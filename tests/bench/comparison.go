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
	// goal is the ratio to reach, goalRate the messages per second; 0 is none.
	goal, goalRate float64
	// repeated: its messages ask for as many operations as there are connections, again and again.
	repeated bool
	// setup makes its tables in the arena's schema and gives what handles one message, called by many at once.
	setup func(ctx context.Context, a *arena) (handle, error)
}

type handle func(msg *message.Message) error

// comparison is a table of contenders that do the same work under the same conditions.
type comparison struct {
	name       string
	about      string        // what else to say
	atOnce     int           // messages
	conns      int           // of each pool; 0: one for each message
	copies     int           // of each message, all at once; 0: one
	latency    time.Duration // added to each round trip
	duplicates bool          // the messages were handled before
	contenders []contender
}

// network is the latency of the comparisons that have one.
const network = 500 * time.Microsecond

// comparisons lists what is measured. A new row is a contender in one of the lists.
func comparisons() []comparison {
	return []comparison{
		{name: "first deliveries, 0.5 ms network, 8 at once", atOnce: 8, latency: network, contenders: firstDeliveries(0.95, 0.95)},
		{name: "what travels with COMMIT, 0.5 ms network, 8 at once", atOnce: 8, latency: network, contenders: atCommit()},
		{name: "first deliveries, loopback, 8 at once", atOnce: 8, contenders: firstDeliveries(0.65, 0)},
		{name: "first deliveries, loopback, 32 at once", atOnce: 32, contenders: firstDeliveries(0.65, 0)},
		{name: "business keys, 0.5 ms network, 8 at once", atOnce: 8, latency: network, about: aboutKeys, contenders: businessKeys(0.85)},
		{name: "business keys, loopback, 8 at once", atOnce: 8, about: aboutKeys, contenders: businessKeys(0)},
		{name: "duplicates, 0.5 ms network, 8 at once", atOnce: 8, latency: network, duplicates: true, contenders: duplicates()},
		{name: "duplicates, loopback, 8 at once", atOnce: 8, duplicates: true, contenders: duplicates()},
		{name: "four copies at once in one process, loopback, pool of 8", atOnce: 8, conns: 8, copies: 4, about: aboutCopies, contenders: copiesInOne()},
		{name: "four copies at once in two processes, loopback, two pools of 8", atOnce: 16, conns: 8, copies: 4, about: aboutTwo, contenders: copiesInTwo()},
		{name: "other algorithms, first deliveries, 0.5 ms network, 8 at once", atOnce: 8, latency: network, about: aboutPeers, contenders: peers(inboxPgx)},
		{name: "other algorithms, first deliveries, loopback, 8 at once", atOnce: 8, about: aboutPeers, contenders: peers(inboxPgx)},
		{name: "other algorithms, duplicates, 0.5 ms network, 8 at once", atOnce: 8, latency: network, duplicates: true, about: aboutPeersDups, contenders: peers(inboxPgxAsking)},
		{name: "other algorithms, duplicates, loopback, 8 at once", atOnce: 8, duplicates: true, about: aboutPeersDups, contenders: peers(inboxPgxAsking)},
	}
}

func firstDeliveries(pgx, openDB float64) []contender {
	return []contender{
		{name: "pgx, bare transaction", setup: barePgx},
		{name: "pgx, textbook", against: "pgx, bare transaction", setup: textbook},
		{name: "pgx, inbox", against: "pgx, bare transaction", goal: pgx, setup: inboxPgx},
		{name: "database/sql, bare transaction", setup: bareSQL},
		{name: "database/sql, inbox", against: "database/sql, bare transaction", setup: inboxSQL},
		{name: "database/sql, inbox, pgxinbox.OpenDB", against: "database/sql, bare transaction", goal: openDB, setup: inboxOpenDB},
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
		{name: "pgx, inbox, seen", against: "pgx, textbook", goalRate: 100_000, setup: inboxPgx},
		{name: "pgx, inbox, DoneTTL -1", against: "pgx, textbook", setup: inboxPgxAsking},
		{name: "database/sql, inbox, DoneTTL -1", against: "pgx, textbook", setup: inboxSQLAsking},
		{name: "database/sql, inbox, pgxinbox.OpenDB, DoneTTL -1", against: "pgx, textbook", setup: inboxOpenDBAsking},
	}
}

// counted lists the contenders whose round trips, statements and log are counted.
func counted() []contender {
	return []contender{
		{name: "pgx, bare transaction", setup: barePgx},
		{name: "pgx, textbook", setup: textbook},
		{name: "pgx, select for update, insert, update", setup: peerOneTransaction},
		{name: "pgx, the same in two transactions", setup: peerTwoTransactions},
		{name: "pgx, insert, violation caught at a savepoint", setup: peerSavepoint},
		{name: "pgx, insert, violation ends the transaction", setup: peerViolation},
		{name: "pgx, inbox", setup: inboxPgxAsking},
		{name: "database/sql, bare transaction", setup: bareSQL},
		{name: "database/sql, inbox", setup: inboxSQLAsking},
		{name: "database/sql, inbox, pgxinbox.OpenDB", setup: inboxOpenDBAsking},
		{name: "pgx, inbox, business key, Claims", setup: itsOwn(keyedAsking(withClaims))},
		{name: "pgx, inbox, business key", setup: itsOwn(keyedAsking(withoutClaims))},
		{name: "pgx, inbox, business key, Claims, repeated", setup: repeated(keyedAsking(withClaims))},
		{name: "pgx, inbox, business key, repeated", setup: repeated(keyedAsking(withoutClaims))},
		{name: "database/sql, inbox, pgxinbox.OpenDB, business key, Claims", setup: itsOwn(keyedOpenDBAsking)},
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

// chosenSizes tells whether claim time against table size is wanted by those who asked for it.
func chosenSizes(only *regexp.Regexp) bool { return only.MatchString("sizes/") }

func chosenContenders(all []contender, only *regexp.Regexp) []contender {
	return slices.DeleteFunc(all, func(one contender) bool { return !only.MatchString("count/" + one.name) })
}
