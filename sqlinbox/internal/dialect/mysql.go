package dialect

import "strings"

// MariaDB is the SQL for MariaDB 10.6 and newer.
//
// The INSERT is a plain one: IGNORE would hide a truncated value, and a statement that waits for another copy's INSERT
// deadlocks when that one rolls back. So it does not wait: a lock that is taken is error 1205 at once.
func MariaDB() Dialect {
	d := mysql()
	d.templates.Check = "SELECT @@in_transaction, EXISTS (SELECT 1 FROM {inbox} WHERE `key` = ?1)"
	d.queue.CheckLease = "SELECT @@in_transaction, NOT EXISTS (SELECT 1 FROM {queue} WHERE seq = ?1 AND state = 0)"
	d.templates.CheckOperation = "SELECT @@in_transaction, EXISTS (SELECT 1 FROM {operations} WHERE `key` = ?1)"
	for _, claim := range []*string{&d.templates.Claim, &d.templates.ClaimOperation, &d.queue.Store, &d.queue.OwnOperation} {
		*claim = "SET STATEMENT innodb_lock_wait_timeout = 0 FOR " + strings.TrimSpace(*claim)
	}
	d.queue.LockLane = "SET STATEMENT innodb_lock_wait_timeout = 5 FOR " + d.queue.LockLane
	return d
}

// MySQL is the SQL for MySQL 8, which has no SET STATEMENT: a read with NOWAIT goes first, and the INSERT waits a second
// at most, as the DSN has to say.
func MySQL() Dialect {
	d := mysql()
	d.templates.Check = "SELECT 1, EXISTS (SELECT 1 FROM {inbox} WHERE `key` = ?1)"
	d.queue.CheckLease = "SELECT 1, NOT EXISTS (SELECT 1 FROM {queue} WHERE seq = ?1 AND state = 0)"
	d.templates.CheckOperation = "SELECT 1, EXISTS (SELECT 1 FROM {operations} WHERE `key` = ?1)"
	d.templates.LockOperationFirst = "SELECT 1 FROM {operations} WHERE `key` = ?1 FOR UPDATE NOWAIT"
	d.templates.LockFirst = "SELECT 1 FROM {inbox} WHERE `key` = ?1 FOR UPDATE NOWAIT"
	return d
}

func mysql() Dialect {
	return Dialect{
		Name:       "mysql",
		Quote:      func(name string) string { return "`" + strings.ReplaceAll(name, "`", "``") + "`" },
		Migrations: mustLoad("mysql"),
		positional: true,

		templates: templates{
			Claim: `
INSERT INTO {inbox} (` + "`key`" + `, fingerprint, received_at, processed_at, message_time, consumer, source, message_id, topic, horizon_scope)
SELECT ?1, ?2, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6), ?3, ?4, ?5, ?6, ?7, ?8 FROM DUAL
WHERE NOT EXISTS (SELECT 1 FROM {horizons} WHERE id = ?9 AND horizon >= ?3)`,

			Lookup: `
SELECT m.` + "`key`" + ` IS NOT NULL, m.processed_at IS NOT NULL,
  EXISTS (SELECT 1 FROM {horizons} WHERE id = ?3 AND horizon >= ?2),
  m.fingerprint, m.consumer, m.source, m.message_id, p.handler, p.messages
FROM (SELECT 1) AS one LEFT JOIN {inbox} AS m ON m.` + "`key`" + ` = ?1 LEFT JOIN {produced} AS p ON p.` + "`key`" + ` = m.` + "`key`",

			Record: "INSERT INTO {produced} (`key`, recorded_at, handler, messages) VALUES (?1, UTC_TIMESTAMP(6), ?2, ?3)",
			Forget: "DELETE FROM {produced} WHERE `key` = ?1",

			ClaimOperation: "INSERT INTO {operations} (`key`, fingerprint, created_at, scope, operation_id) VALUES (?1, ?2, UTC_TIMESTAMP(6), ?3, ?4)",
			FindOperation:  "SELECT fingerprint, scope, operation_id, result, messages FROM {operations} WHERE `key` = ?1 AND owner IS NULL",
			KeepResult:     "UPDATE {operations} SET result = ?2, messages = ?3 WHERE `key` = ?1",
			DropOperation:  "DELETE FROM {operations} WHERE `key` = ?1 AND fingerprint = ?2",

			PutScheme: `INSERT INTO {consumers} (id, consumer, key_scheme, created_at) VALUES (?1, ?2, ?3, UTC_TIMESTAMP(6))`,
			GetScheme: `SELECT key_scheme FROM {consumers} WHERE id = ?1`,
		},
		queue: mysqlQueue,
		schema: schemaStatements{
			// DDL commits by itself here: the lock belongs to the connection, a migration that is killed is taken up
			// again by the next one, and every statement can be repeated.
			lock:         "SELECT GET_LOCK('watermill_inbox_{lock}', 31536000)",
			unlock:       "SELECT RELEASE_LOCK('watermill_inbox_{lock}')",
			hasSchema:    "SELECT count(*) FROM information_schema.schemata WHERE schema_name = {schema}",
			createSchema: "CREATE SCHEMA {quotedSchema}",
			hasTable:     "SELECT count(*) FROM information_schema.tables WHERE table_schema = {schema} AND table_name = {table}",
			versionsTable: `CREATE TABLE IF NOT EXISTS {migrations} (
  version    INT          NOT NULL PRIMARY KEY,
  name       VARCHAR(100) NOT NULL,
  applied_at DATETIME(6)  NOT NULL DEFAULT CURRENT_TIMESTAMP(6)
) ENGINE = InnoDB`,
		},
	}
}
