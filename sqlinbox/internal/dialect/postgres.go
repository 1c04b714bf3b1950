package dialect

import (
	"fmt"
	"time"
)

// PostgreSQL is the SQL for PostgreSQL 14 and newer.
func PostgreSQL() Dialect {
	return Dialect{
		Name:       "postgresql",
		Quote:      doubleQuote,
		Migrations: mustLoad("postgres"),

		// The claim takes the advisory lock of its key without waiting and holds it until the transaction ends. Whoever
		// does not get it would only wait for the other transaction inside the INSERT, holding a connection; so no row is
		// inserted, and the caller waits without one. Behind the lock the row is either there and committed (ON CONFLICT)
		// or not there. The horizon is looked at in the same statement, so in the same snapshot.
		templates: templates{
			Claim: `
INSERT INTO {inbox} (key, fingerprint, received_at, processed_at, message_time, consumer, source, message_id, topic, horizon_scope)
SELECT $1::uuid, $2::uuid, now(), now(), $3::timestamptz, $4::text, $5::text, $6::text, $7::text, $8::text
WHERE pg_try_advisory_xact_lock($10::bigint)
  AND NOT EXISTS (SELECT FROM {horizons} WHERE id = $9::uuid AND horizon >= $3::timestamptz)
ON CONFLICT (key) DO NOTHING`,

			// These, and the like for operations, are never prepared: a plan made while the table was small would stay a sequential scan. The lock
			// of Probe ends with its statement. Find and Late are planned in half the time that Lookup takes.
			Probe: `SELECT pg_try_advisory_xact_lock($2::bigint) OR EXISTS (SELECT FROM {inbox} WHERE key = $1::uuid)`,
			Find: `
SELECT true, m.processed_at IS NOT NULL, false, m.fingerprint, m.consumer, m.source, m.message_id, p.handler, p.messages
FROM {inbox} AS m LEFT JOIN {produced} AS p ON p.key = m.key WHERE m.key = $1::uuid`,
			Late:    `SELECT EXISTS (SELECT FROM {horizons} WHERE id = $1::uuid AND horizon >= $2::timestamptz)`,
			TryLock: `SELECT pg_try_advisory_xact_lock($1::bigint)`,
			Lookup: `
SELECT m.key IS NOT NULL, m.processed_at IS NOT NULL,
  EXISTS (SELECT FROM {horizons} WHERE id = $3::uuid AND horizon >= $2::timestamptz),
  m.fingerprint, m.consumer, m.source, m.message_id, p.handler, p.messages
FROM (SELECT 1) AS one LEFT JOIN {inbox} AS m ON m.key = $1::uuid LEFT JOIN {produced} AS p ON p.key = m.key`,

			// For drivers that do not show the state of their connection. A claim has assigned a transaction id.
			Check:          `SELECT pg_current_xact_id_if_assigned() IS NOT NULL, EXISTS (SELECT FROM {inbox} WHERE key = $1::uuid)`,
			CheckOperation: `SELECT pg_current_xact_id_if_assigned() IS NOT NULL, EXISTS (SELECT FROM {operations} WHERE key = $1::uuid)`,

			Record: `INSERT INTO {produced} (key, handler, messages) VALUES ($1, $2, $3)`,

			// In key order, and past rows that another process is deleting already.
			Forget: `
DELETE FROM {produced} WHERE key IN (
  SELECT key FROM {produced} WHERE key = ANY ($1::uuid[]) ORDER BY key FOR UPDATE SKIP LOCKED)`,

			// An operation's claim is that of a message, without a horizon.
			ClaimOperation: `
INSERT INTO {operations} (key, fingerprint, created_at, scope, operation_id)
SELECT $1::uuid, $2::uuid, now(), $3::text, $4::text
WHERE pg_try_advisory_xact_lock($5::bigint)
ON CONFLICT (key) DO NOTHING`,
			ProbeOperation: `SELECT pg_try_advisory_xact_lock($2::bigint) OR EXISTS (SELECT FROM {operations} WHERE key = $1::uuid AND owner IS NULL)`,
			FindOperation:  `SELECT fingerprint, scope, operation_id, result, messages FROM {operations} WHERE key = $1::uuid AND owner IS NULL`,
			// It may come long after the claim, which a savepoint may have undone: a row of another transaction is not touched.
			KeepResult:    `UPDATE {operations} SET result = $2, messages = $3 WHERE key = $1 AND created_at = now()`,
			DropOperation: `DELETE FROM {operations} WHERE key = $1 AND fingerprint = $2`,

			PutScheme: `INSERT INTO {consumers} (id, consumer, key_scheme) VALUES ($1, $2, $3) ON CONFLICT (id) DO NOTHING`,
			GetScheme: `SELECT key_scheme FROM {consumers} WHERE id = $1`,
		},
		queue: postgresQueue,
		schema: schemaStatements{
			// Transaction-scoped, so that a migration that is killed leaves no lock, also behind a pooler.
			begin: "BEGIN ISOLATION LEVEL READ COMMITTED", // behind the lock it must see what the one before it did
			lock:  "SELECT pg_advisory_xact_lock({lock})",
			// CREATE SCHEMA needs a right that the role may not have, also when the schema is there: look first.
			hasSchema:    "SELECT count(*) FROM pg_namespace WHERE nspname = {schema}",
			createSchema: "CREATE SCHEMA {quotedSchema}",
			hasTable:     "SELECT count(*) FROM pg_class WHERE oid = to_regclass({quotedTable})",
			versionsTable: `CREATE TABLE IF NOT EXISTS {migrations} (
  version    integer     NOT NULL PRIMARY KEY,
  name       text        NOT NULL,
  applied_at timestamptz NOT NULL DEFAULT now()
)`,
		},
	}
}

// IdleTimeout gives the statement that sets idle_in_transaction_session_timeout for the transaction it runs in; empty
// for 0.
func IdleTimeout(d time.Duration) string {
	if d <= 0 {
		return ""
	}
	return fmt.Sprintf("SET LOCAL idle_in_transaction_session_timeout = %d", d.Milliseconds())
}
