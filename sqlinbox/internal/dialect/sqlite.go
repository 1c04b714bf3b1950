package dialect

// SQLite is the SQL for SQLite 3.42 and newer. Times are Unix milliseconds of the database's clock.
func SQLite() Dialect {
	return Dialect{
		Name:       "sqlite",
		Quote:      doubleQuote,
		Migrations: mustLoad("sqlite"),

		// The one writer's lock, which BEGIN IMMEDIATE takes, does what the advisory lock does on PostgreSQL.
		templates: templates{
			Claim: `
INSERT INTO {inbox} (key, fingerprint, received_at, processed_at, message_time, consumer, source, message_id, topic, horizon_scope)
SELECT ?1, ?2, now.ms, now.ms, ?3, ?4, ?5, ?6, ?7, ?8
FROM (SELECT CAST(unixepoch('subsec') * 1000 AS INTEGER) AS ms) AS now
WHERE NOT EXISTS (SELECT 1 FROM {horizons} WHERE id = ?9 AND horizon >= ?3)
ON CONFLICT (key) DO NOTHING`,

			Lookup: `
SELECT m.key IS NOT NULL, m.processed_at IS NOT NULL,
  EXISTS (SELECT 1 FROM {horizons} WHERE id = ?3 AND horizon >= ?2),
  m.fingerprint, m.consumer, m.source, m.message_id, p.handler, p.messages
FROM (SELECT 1) AS one LEFT JOIN {inbox} AS m ON m.key = ?1 LEFT JOIN {produced} AS p ON p.key = m.key`,

			Record: `INSERT INTO {produced} (key, handler, messages) VALUES (?1, ?2, ?3)`,
			Forget: `DELETE FROM {produced} WHERE key = ?1`,

			ClaimOperation: `
INSERT INTO {operations} (key, fingerprint, created_at, scope, operation_id)
VALUES (?1, ?2, CAST(unixepoch('subsec') * 1000 AS INTEGER), ?3, ?4)
ON CONFLICT (key) DO NOTHING`,
			FindOperation: `SELECT fingerprint, scope, operation_id, result, messages FROM {operations} WHERE key = ?1 AND owner IS NULL`,
			KeepResult:    `UPDATE {operations} SET result = ?2, messages = ?3 WHERE key = ?1`,
			DropOperation: `DELETE FROM {operations} WHERE key = ?1 AND fingerprint = ?2`,

			PutScheme: `INSERT INTO {consumers} (id, consumer, key_scheme, created_at) VALUES (?1, ?2, ?3, CAST(unixepoch('subsec') * 1000 AS INTEGER)) ON CONFLICT (id) DO NOTHING`,
			GetScheme: `SELECT key_scheme FROM {consumers} WHERE id = ?1`,
		},
		queue: sqliteQueue,
		schema: schemaStatements{
			begin:    "BEGIN IMMEDIATE",
			hasTable: "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = {table}",
			versionsTable: `CREATE TABLE IF NOT EXISTS {migrations} (
  version    INTEGER NOT NULL PRIMARY KEY,
  name       TEXT    NOT NULL,
  applied_at INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000 AS INTEGER))
) STRICT`,
		},
	}
}
