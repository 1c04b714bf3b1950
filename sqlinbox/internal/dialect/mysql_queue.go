package dialect

// mysqlQueue is the queue on MariaDB and MySQL. Rows are leased by primary key, after a read that skips locked ones: an
// UPDATE with ORDER BY and LIMIT deadlocks.
var mysqlQueue = queueTemplates{
	Store: "INSERT INTO {inbox} (`key`, fingerprint, received_at, processed_at, message_time, consumer, source, message_id, topic, horizon_scope)" + `
SELECT ?1, ?2, UTC_TIMESTAMP(6), NULL, ?3, ?4, ?5, ?6, ?7, ?8 FROM DUAL
WHERE NOT EXISTS (SELECT 1 FROM {horizons} WHERE id = ?9 AND horizon >= ?3)`,
	Enqueue: "INSERT INTO {queue} (`key`, consumer_id, lane, due_at, received_at, message)" + `
SELECT ?1, ?2, ?3,
  CASE WHEN ?3 IS NULL OR NOT EXISTS (SELECT 1 FROM {queue} AS o WHERE o.consumer_id = ?2 AND o.lane = ?3) THEN UTC_TIMESTAMP(6) END,
  UTC_TIMESTAMP(6), ?4 FROM DUAL`,

	Pick: `
SELECT seq FROM {queue} FORCE INDEX (due) WHERE consumer_id = ?1 AND due_at <= UTC_TIMESTAMP(6)
ORDER BY due_at, seq LIMIT ?2 FOR UPDATE SKIP LOCKED`,
	Lease: `
UPDATE {queue} SET due_at = UTC_TIMESTAMP(6) + INTERVAL ?3 * 1000 MICROSECOND, token = ?2,
  attempts = attempts + (state = 0), unfinished = unfinished + 1
WHERE seq = ?1`,
	Leased: "SELECT q.seq, q.`key`, q.consumer_id, q.lane, q.state, q.attempts, q.unfinished, q.message,\n  m.fingerprint, m.consumer, m.source, m.message_id, m.topic, p.handler, p.messages\n" +
		"FROM {queue} AS q JOIN {inbox} AS m ON m.`key` = q.`key` LEFT JOIN {produced} AS p ON p.`key` = q.`key` WHERE q.seq = ?1",
	Renew: `UPDATE {queue} SET due_at = UTC_TIMESTAMP(6) + INTERVAL ?3 * 1000 MICROSECOND WHERE seq = ?1 AND token = ?2`,

	Take:      `DELETE FROM {queue} WHERE seq = ?1 AND token = ?2`,
	Publish:   `UPDATE {queue} SET state = 1, unfinished = 0 WHERE seq = ?1 AND token = ?2 AND state = 0`,
	Delete:    `DELETE FROM {queue} WHERE seq = ?1`,
	Processed: "UPDATE {inbox} SET processed_at = UTC_TIMESTAMP(6) WHERE `key` = ?1",
	Retry: `
UPDATE {queue} SET due_at = UTC_TIMESTAMP(6) + INTERVAL ?3 * 1000 MICROSECOND, token = NULL,
  unfinished = CASE WHEN state = 1 THEN unfinished ELSE 0 END, last_error = ?4
WHERE seq = ?1 AND token = ?2`,
	Release: `
UPDATE {queue} SET due_at = UTC_TIMESTAMP(6), token = NULL, attempts = attempts - (state = 0), unfinished = unfinished - 1
WHERE seq = ?1 AND token = ?2`,
	Bury: `UPDATE {queue} SET state = 2, due_at = NULL, token = NULL WHERE seq = ?1 AND token = ?2 AND state = 0`,
	// A row that an UPDATE leaves as it is does not count as touched.
	Hold:    `UPDATE {queue} SET due_at = UTC_TIMESTAMP(6) + INTERVAL ?3 * 1000 MICROSECOND, holds = holds + 1 WHERE seq = ?1 AND token = ?2`,
	Delay:   `UPDATE {queue} SET due_at = UTC_TIMESTAMP(6) + INTERVAL ?2 * 1000 MICROSECOND WHERE seq = ?1`,
	Because: `UPDATE {queue} SET last_error = ?2 WHERE seq = ?1`,
	NextDue: `SELECT TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), due_at) DIV 1000 FROM {queue} WHERE consumer_id = ?1 AND due_at IS NOT NULL ORDER BY due_at LIMIT 1`,
	// A lane is one of 256 rows, of which a transaction that changes the lane locks its own.
	LockLane: `SELECT slot FROM {lanes} WHERE slot = ?1 & 255 FOR UPDATE`,
	Promote: `
UPDATE {queue} SET due_at = UTC_TIMESTAMP(6)
WHERE seq = (SELECT first FROM (SELECT min(seq) AS first FROM {queue} WHERE consumer_id = ?1 AND lane = ?2) AS f) AND due_at IS NULL AND state = 0`,
	BlockedLanes: `
WITH RECURSIVE l AS (
  SELECT min(lane) AS lane FROM {queue} WHERE consumer_id = ?1
  UNION ALL
  SELECT (SELECT min(n.lane) FROM {queue} AS n WHERE n.consumer_id = ?1 AND n.lane > l.lane) FROM l WHERE l.lane IS NOT NULL
)
SELECT h.lane FROM l JOIN {queue} AS h ON h.seq = (SELECT min(f.seq) FROM {queue} AS f WHERE f.consumer_id = ?1 AND f.lane = l.lane)
WHERE h.state = 0 AND h.due_at IS NULL`,

	FindStep:     "SELECT result FROM {steps} WHERE `key` = ?1 AND name = ?2",
	PutStep:      "INSERT INTO {steps} (`key`, name, result) VALUES (?1, ?2, ?3) ON DUPLICATE KEY UPDATE name = name",
	ForgetSteps:  "DELETE FROM {steps} WHERE `key` = ?1",
	OwnOperation: "INSERT INTO {operations} (`key`, fingerprint, created_at, scope, operation_id, owner) VALUES (?1, ?2, UTC_TIMESTAMP(6), ?3, ?4, ?6)",
	TakeOverOperation: "UPDATE {operations} AS o SET o.owner = ?3, o.fingerprint = ?2\n" +
		"WHERE o.`key` = ?1 AND o.owner IS NOT NULL AND NOT EXISTS (SELECT 1 FROM {queue} AS q WHERE q.`key` = o.owner)",
	OwnerOf: "SELECT owner, EXISTS (SELECT 1 FROM {queue} AS q WHERE q.`key` = o.owner), fingerprint, scope, operation_id, result, messages\n" +
		"FROM {operations} AS o WHERE o.`key` = ?1",
	CompleteOperation: "UPDATE {operations} SET owner = NULL, result = ?2, messages = ?3 WHERE `key` = ?1 AND owner = ?4",
	FreeOperations:    `DELETE FROM {operations} WHERE owner = ?1`,

	Requeue: `UPDATE {queue} SET state = 0, due_at = UTC_TIMESTAMP(6), received_at = UTC_TIMESTAMP(6), attempts = 0, unfinished = 0 WHERE seq = ?1 AND state = 2`,
	Kill:    `DELETE FROM {queue} WHERE seq = ?1`,
	RowOf:   "SELECT `key`, consumer_id, lane FROM {queue} WHERE seq = ?1 FOR UPDATE",
	Counts: `
SELECT m.consumer, COALESCE(sum(q.state = 0), 0), COALESCE(sum(q.state = 1), 0), COALESCE(sum(q.state = 2), 0),
  COALESCE(TIMESTAMPDIFF(MICROSECOND, min(IF(q.state = 0, q.received_at, NULL)), UTC_TIMESTAMP(6)) DIV 1000, 0)
FROM {queue} AS q JOIN {inbox} AS m ON m.` + "`key`" + ` = q.` + "`key`" + ` GROUP BY m.consumer ORDER BY m.consumer`,
	Old: "SELECT q.seq, q.state, q.attempts, TIMESTAMPDIFF(MICROSECOND, q.received_at, UTC_TIMESTAMP(6)) DIV 1000, COALESCE(q.last_error, ''),\n" +
		"  m.consumer, m.source, m.message_id\nFROM {queue} AS q JOIN {inbox} AS m ON m.`key` = q.`key`\n" +
		"WHERE q.received_at <= UTC_TIMESTAMP(6) - INTERVAL ?1 * 1000 MICROSECOND ORDER BY q.seq LIMIT ?2",
}
