package dialect

const sqliteNow = "CAST(unixepoch('subsec') * 1000 AS INTEGER)"

// sqliteQueue is the queue on SQLite, whose one writer needs no other lock.
var sqliteQueue = queueTemplates{
	Store: `
INSERT INTO {inbox} (key, fingerprint, received_at, processed_at, message_time, consumer, source, message_id, topic, horizon_scope)
SELECT ?1, ?2, ` + sqliteNow + `, NULL, ?3, ?4, ?5, ?6, ?7, ?8
WHERE NOT EXISTS (SELECT 1 FROM {horizons} WHERE id = ?9 AND horizon >= ?3)
ON CONFLICT (key) DO NOTHING`,
	Enqueue: `
INSERT INTO {queue} (key, consumer_id, lane, due_at, received_at, message)
SELECT ?1, ?2, ?3,
  CASE WHEN ?3 IS NULL OR NOT EXISTS (SELECT 1 FROM {queue} WHERE consumer_id = ?2 AND lane = ?3) THEN ` + sqliteNow + ` END,
  ` + sqliteNow + `, ?4`,

	Pick: `SELECT seq FROM {queue} WHERE consumer_id = ?1 AND due_at <= ` + sqliteNow + ` ORDER BY due_at, seq LIMIT ?2`,
	Lease: `
UPDATE {queue} SET due_at = ` + sqliteNow + ` + ?3, token = ?2, attempts = attempts + (state = 0), unfinished = unfinished + 1
WHERE seq = ?1`,
	Leased: `
SELECT ` + leasedColumns + `
FROM {queue} AS q JOIN {inbox} AS m ON m.key = q.key LEFT JOIN {produced} AS p ON p.key = q.key WHERE q.seq = ?1`,
	Renew: `UPDATE {queue} SET due_at = ` + sqliteNow + ` + ?3 WHERE seq = ?1 AND token = ?2`,

	Take:      `DELETE FROM {queue} WHERE seq = ?1 AND token = ?2`,
	Publish:   `UPDATE {queue} SET state = 1, unfinished = 0 WHERE seq = ?1 AND token = ?2 AND state = 0`,
	Delete:    `DELETE FROM {queue} WHERE seq = ?1`,
	Processed: `UPDATE {inbox} SET processed_at = ` + sqliteNow + ` WHERE key = ?1`,
	Retry: `UPDATE {queue} SET due_at = ` + sqliteNow + ` + ?3, token = NULL,
  unfinished = CASE WHEN state = 1 THEN unfinished ELSE 0 END, last_error = ?4 WHERE seq = ?1 AND token = ?2`,
	Release: `
UPDATE {queue} SET due_at = ` + sqliteNow + `, token = NULL, attempts = attempts - (state = 0), unfinished = unfinished - 1
WHERE seq = ?1 AND token = ?2`,
	Bury:    `UPDATE {queue} SET state = 2, due_at = NULL, token = NULL WHERE seq = ?1 AND token = ?2 AND state = 0`,
	Hold:    `UPDATE {queue} SET due_at = ` + sqliteNow + ` + ?3 WHERE seq = ?1 AND token = ?2`,
	Delay:   `UPDATE {queue} SET due_at = ` + sqliteNow + ` + ?2 WHERE seq = ?1`,
	Because: `UPDATE {queue} SET last_error = ?2 WHERE seq = ?1`,
	NextDue: `SELECT due_at - ` + sqliteNow + ` FROM {queue} WHERE consumer_id = ?1 AND due_at IS NOT NULL ORDER BY due_at LIMIT 1`,
	Promote: `
UPDATE {queue} SET due_at = ` + sqliteNow + `
WHERE seq = (SELECT min(seq) FROM {queue} WHERE consumer_id = ?1 AND lane = ?2) AND due_at IS NULL AND state = 0`,
	BlockedLanes: `
WITH RECURSIVE l AS (
  SELECT min(lane) AS lane FROM {queue} WHERE consumer_id = ?1
  UNION ALL
  SELECT (SELECT min(n.lane) FROM {queue} AS n WHERE n.consumer_id = ?1 AND n.lane > l.lane) FROM l WHERE l.lane IS NOT NULL
)
SELECT h.lane FROM l JOIN {queue} AS h ON h.seq = (SELECT min(f.seq) FROM {queue} AS f WHERE f.consumer_id = ?1 AND f.lane = l.lane)
WHERE h.state = 0 AND h.due_at IS NULL`,

	FindStep:    `SELECT result FROM {steps} WHERE key = ?1 AND name = ?2`,
	PutStep:     `INSERT INTO {steps} (key, name, result) VALUES (?1, ?2, ?3) ON CONFLICT (key, name) DO NOTHING`,
	ForgetSteps: "DELETE FROM {steps} WHERE key = ?1",
	OwnOperation: `
INSERT INTO {operations} (key, fingerprint, created_at, scope, operation_id, owner)
VALUES (?1, ?2, ` + sqliteNow + `, ?3, ?4, ?6)
ON CONFLICT (key) DO NOTHING`,
	TakeOverOperation: `
UPDATE {operations} SET owner = ?3, fingerprint = ?2
WHERE key = ?1 AND owner IS NOT NULL AND NOT EXISTS (SELECT 1 FROM {queue} AS q WHERE q.key = {operations}.owner)`,
	OwnerOf: `
SELECT owner, EXISTS (SELECT 1 FROM {queue} AS q WHERE q.key = o.owner), fingerprint, scope, operation_id, result, messages
FROM {operations} AS o WHERE o.key = ?1`,
	CompleteOperation: `UPDATE {operations} SET owner = NULL, result = ?2, messages = ?3 WHERE key = ?1 AND owner = ?4`,
	FreeOperations:    `DELETE FROM {operations} WHERE owner = ?1`,

	Requeue: `UPDATE {queue} SET state = 0, due_at = ` + sqliteNow + `, received_at = ` + sqliteNow + `, attempts = 0, unfinished = 0 WHERE seq = ?1 AND state = 2`,
	Kill:    `DELETE FROM {queue} WHERE seq = ?1`,
	RowOf:   `SELECT key, consumer_id, lane FROM {queue} WHERE seq = ?1`,
	Counts: `
SELECT m.consumer, count(*) FILTER (WHERE q.state = 0), count(*) FILTER (WHERE q.state = 1), count(*) FILTER (WHERE q.state = 2),
  COALESCE(` + sqliteNow + ` - min(q.received_at) FILTER (WHERE q.state = 0), 0)
FROM {queue} AS q JOIN {inbox} AS m ON m.key = q.key GROUP BY m.consumer ORDER BY m.consumer`,
	Old: `
SELECT q.seq, q.state, q.attempts, ` + sqliteNow + ` - q.received_at, COALESCE(q.last_error, ''), m.consumer, m.source, m.message_id
FROM {queue} AS q JOIN {inbox} AS m ON m.key = q.key
WHERE q.received_at <= ` + sqliteNow + ` - ?1 ORDER BY q.seq LIMIT ?2`,
}
