// Package wire counts what the inbox costs on PostgreSQL: round trips and statements between client and server, bytes
// of write-ahead log, transaction ids, dead rows. The numbers are exact and do not depend on the machine's speed, so
// they are tests; how long things take is measured by tests/bench.
package wire
