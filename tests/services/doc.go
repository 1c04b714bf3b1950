// Package services finds or starts the servers that the tests need, so that a fresh machine
// needs nothing but Go and either a container engine or root.
//
// PostgreSQL, MariaDB and PgBouncer give the address of one shared server each. It is looked
// for in this order:
//
//  1. an address in the environment: INBOX_TEST_POSTGRES, INBOX_TEST_MARIADB,
//     INBOX_TEST_PGBOUNCER. An address that does not answer fails the test everywhere;
//  2. what an earlier run started on our own ports (25431 to 25433). It is known by a mark in
//     its own settings, so another server on such a port is never taken for it;
//  3. docker compose, where an engine answers;
//  4. server binaries on this machine; as root they are installed by apt-get first.
//
// Otherwise the service is missing: with CI=true the test fails, elsewhere it is skipped with
// the name of the service and how to get it.
//
// What is started here keeps running after the test process and is found again by the next
// one; `go run ./tests/services/start -stop` ends it. The shared servers are durable (fsync
// is on): crash tests and benchmarks rely on it. Everything listens on loopback only and asks
// for no password.
package services
