package main

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// walMessages is how many messages the log of one is the average of.
const walMessages = 500

// images tells whether the full images of pages are counted that are written once after each checkpoint.
type images bool

const (
	withImages    images = true
	withoutImages images = false
)

// wal gives the bytes of write-ahead log that a new message costs. It reads the log itself and takes the transactions
// that wrote into the arena's schema, so that it does not matter what else the server does. That needs pg_walinspect, a
// part of PostgreSQL since version 15; without it the answer is 0.
func wal(ctx context.Context, a *arena, counted images, handle func() error) (perMessage float64, err error) {
	if err := a.create(ctx, "EXTENSION IF NOT EXISTS pg_walinspect SCHEMA "+a.schema); err != nil {
		return 0, nil //nolint:nilerr // not installed, or not allowed
	}
	var inspect string
	err = a.admin.QueryRow(ctx,
		"SELECT nspname FROM pg_extension JOIN pg_namespace AS n ON n.oid = extnamespace WHERE extname = 'pg_walinspect'").Scan(&inspect)
	if err != nil {
		return 0, err
	}
	const place = "SELECT pg_current_wal_flush_lsn()::text"
	var begin, end string
	if err := a.admin.QueryRow(ctx, place).Scan(&begin); err != nil {
		return 0, err
	}
	for range walMessages {
		if err := handle(); err != nil {
			return 0, err
		}
	}
	if err := a.admin.QueryRow(ctx, place).Scan(&end); err != nil {
		return 0, err
	}
	// A savepoint has a transaction id of its own. A record takes up whole units of 8 bytes.
	err = a.admin.QueryRow(ctx, fmt.Sprintf(`
WITH records AS MATERIALIZED (
  SELECT xid, record_length, fpi_length, substring(block_ref FROM 'rel \d+/(\d+/\d+)') AS relation
  FROM %s.pg_get_wal_records_info($1::text::pg_lsn, $2::text::pg_lsn)
  WHERE xid <> '0'
), relations AS MATERIALIZED (
  SELECT (SELECT oid FROM pg_database WHERE datname = current_database()) || '/' || pg_relation_filenode(oid) AS relation
  FROM pg_class WHERE relnamespace = current_schema()::regnamespace
)
SELECT sum((record_length - CASE WHEN $4 THEN 0 ELSE fpi_length END + 7) / 8 * 8)::float8 / $3
FROM records WHERE xid IN (SELECT xid FROM records JOIN relations USING (relation))`,
		pgx.Identifier{inspect}.Sanitize()), begin, end, walMessages, bool(counted)).Scan(&perMessage)
	return perMessage, err
}
