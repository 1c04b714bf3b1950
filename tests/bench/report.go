package main

import (
	"fmt"
	"io"
	"slices"

	"github.com/watermill-contrib/watermill-inbox/inboxtest"
)

// report writes Markdown.
type report struct{ w io.Writer }

func (r report) printf(format string, args ...any) { _, _ = fmt.Fprintf(r.w, format, args...) }

func (r report) begin(machine []fact, command string) {
	r.printf(`# Benchmarks

What the inbox costs beside the bare transaction (begin, one INSERT, commit) and the textbook inbox (begin, insert the
id unless it is there, the INSERT, mark the id as processed, commit). The handler is that one INSERT; the middleware is
called without a router; ids are from inbox.NewUUID. A handler that does more pays no more for the inbox, so relatively
less.

"DoneTTL -1" is the inbox without its memory of done keys: the database is asked about every duplicate. "Seen" is the
default: a copy of a message that this process handled in the last minute is answered without a round trip.

The contenders take turns in one run, in shuffled order in each round. A ratio compares the messages per second of two
contenders in the same round; the tables show its median, least and greatest value of all rounds, and the median of the
messages per second. Those say more about the machine than about the inbox. The network's latency is added to each round
trip by inboxtest.Proxy in the benchmark's own process; client, proxy and server share the processor. For a duplicate
the textbook inbox reads the status and rolls back.

This file is the output of

    %s

| machine | |
|---|---|
`, command)
	for _, f := range machine {
		r.printf("| %s | %s |\n", f.name, f.value)
	}
}

func (r report) comparison(c comparison, results []result) {
	r.printf("\n## %s\n\n", upperFirst(c.name))
	if c.about != "" {
		r.printf("%s\n\n", c.about)
	}
	r.printf("| | ratio: median | min | max | to | goal | messages/s |\n|---|--:|--:|--:|---|--:|--:|\n")
	for _, one := range results {
		r.printf("| %s ", one.contender.name)
		if one.contender.against == "" {
			r.printf("| 1.00 | | | | ")
		} else {
			r.printf("| **%.2f** | %.2f | %.2f | %s ", median(one.ratios), slices.Min(one.ratios), slices.Max(one.ratios), one.contender.against)
			switch {
			case one.contender.goal > 0:
				r.printf("| %.2f ", one.contender.goal)
			case one.contender.goalRate > 0:
				r.printf("| %.0f/s ", one.contender.goalRate)
			default:
				r.printf("| ")
			}
		}
		r.printf("| %.0f |\n", median(one.rates))
	}
}

func (r report) costs(costs []cost) {
	if len(costs) == 0 {
		return
	}
	r.printf(`
## Counted, not timed

Round trips / statements for a first delivery on a warm connection, for the very first one of a process (which prepares
the statements, and for the inbox registers the consumer) and for a duplicate, which to the bare transaction is a
message like any other and to the inbox one that the database is asked about (DoneTTL -1); and bytes of write-ahead log
for a first delivery between two checkpoints (0: the server has no pg_walinspect). Where an operation is repeated, the
very first message is the one that does it. These do not depend on the machine; the tests in tests/wire assert those of
the inbox alone, the log after a checkpoint and on a million rows included.

| | first delivery | cold | duplicate | WAL bytes |
|---|--:|--:|--:|--:|
`)
	for _, c := range costs {
		r.printf("| %s | %s | %s | %s | %.0f |\n", c.name, counts(c.warm), counts(c.cold), counts(c.duplicate), c.wal)
	}
}

func (r report) sizes(tables []*sized) {
	r.printf(`
## Claim time against table size

Claim and COMMIT of new messages, one after the other, on loopback, with a handler that does nothing. All tables are
loaded first; then they take turns of some claims each, in shuffled order, beginning right after a checkpoint. The ratio
is that of the median to the empty table's. The bytes of write-ahead log are those of a message after another checkpoint,
the full images of the pages that it touches first included (0: the server has no pg_walinspect).

| ids | rows | claims | median, µs | ratio | p99, µs | WAL bytes |
|---|--:|--:|--:|--:|--:|--:|
`)
	empty := map[string]float64{}
	for _, t := range tables {
		if t.rows == 0 {
			empty[t.ids.name] = t.quantile(0.5)
		}
	}
	for _, t := range tables {
		middle := t.quantile(0.5)
		r.printf("| %s | %d | %d | %.0f | %.2f | %.0f | %.0f |\n", t.ids.name, t.rows, len(t.took), middle,
			middle/empty[t.ids.name], t.quantile(0.99), t.wal)
	}
}

func counts(c inboxtest.Counts) string { return fmt.Sprintf("%d / %d", c.RoundTrips, c.Statements) }

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	return (sorted[n/2] + sorted[(n-1)/2]) / 2
}

func upperFirst(s string) string { return string(s[0]-'a'+'A') + s[1:] }
