package main

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	inbox "github.com/watermill-contrib/watermill-inbox"
)

// walMessages is how many messages the log of one is the average of.
const walMessages = 500

// wal gives the bytes of write-ahead log that a new message costs, without the full images of pages after a checkpoint.
// It reads the log itself and takes the records of the handler's own transactions, so that it does not matter what else
// the server does. That needs pg_walinspect, a part of PostgreSQL since version 15; without it the answer is 0.
func wal(ctx context.Context, a *arena, h handle) (perMessage float64, err error) {
	if err := a.create(ctx, "EXTENSION IF NOT EXISTS pg_walinspect SCHEMA "+a.schema); err != nil {
		return 0, nil //nolint:nilerr // not installed, or not allowed
	}
	var inspect string
	err = a.admin.QueryRow(ctx,
		"SELECT nspname FROM pg_extension JOIN pg_namespace AS n ON n.oid = extnamespace WHERE extname = 'pg_walinspect'").Scan(&inspect)
	if err != nil {
		return 0, err
	}
	if _, err := a.admin.Exec(ctx, "TRUNCATE effects"); err != nil {
		return 0, err
	}
	const place = "SELECT pg_current_wal_flush_lsn()::text"
	var begin, end string
	if err := a.admin.QueryRow(ctx, place).Scan(&begin); err != nil {
		return 0, err
	}
	for range walMessages {
		if err := deliver(ctx, h, inbox.NewUUID()); err != nil {
			return 0, err
		}
	}
	if err := a.admin.QueryRow(ctx, place).Scan(&end); err != nil {
		return 0, err
	}
	// The rows that the handler wrote tell the transactions. A record takes up whole units of 8 bytes.
	err = a.admin.QueryRow(ctx, fmt.Sprintf(`
SELECT sum((record_length - fpi_length + 7) / 8 * 8)::float8 / $3
FROM %s.pg_get_wal_records_info($1::text::pg_lsn, $2::text::pg_lsn)
WHERE xid IN (SELECT xmin FROM effects)`, pgx.Identifier{inspect}.Sanitize()), begin, end, walMessages).Scan(&perMessage)
	return perMessage, err
}
