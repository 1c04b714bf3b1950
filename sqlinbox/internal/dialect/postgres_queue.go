package dialect

// postgresQueue is the queue on PostgreSQL. One time, due_at, is both "not before" and the end of the lease, so that a
// scan for due rows meets neither leased nor waiting ones.
var postgresQueue = queueTemplates{
	PlanOnce:    "SELECT set_config('plan_cache_mode', 'force_generic_plan', true), set_config('enable_seqscan', 'off', true)",
	LockTimeout: "SET LOCAL lock_timeout = 200",

	// Keys in order, so that two batches with the same keys wait for each other instead of deadlocking.
	StoreAll: `
WITH s AS MATERIALIZED (
  SELECT DISTINCT ON (key) *
  FROM unnest($1::uuid[], $2::uuid[], $3::timestamptz[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[], $9::uuid[], $10::uuid[], $11::bigint[], $12::bytea[])
    WITH ORDINALITY AS s (key, fingerprint, message_time, consumer, source, message_id, topic, horizon_scope, horizon_id, consumer_id, lane, message, ord)
  ORDER BY key, ord
), i AS (
  INSERT INTO {inbox} (key, fingerprint, received_at, processed_at, message_time, consumer, source, message_id, topic, horizon_scope)
  SELECT key, fingerprint, now(), NULL, message_time, consumer, source, message_id, topic, horizon_scope FROM s
  WHERE NOT EXISTS (SELECT FROM {horizons} AS h WHERE h.id = s.horizon_id AND h.horizon >= s.message_time)
  ORDER BY key
  ON CONFLICT (key) DO NOTHING RETURNING key
)
INSERT INTO {queue} (key, consumer_id, lane, due_at, message)
SELECT s.key, s.consumer_id, s.lane,
  CASE WHEN s.lane IS NULL
    OR row_number() OVER (PARTITION BY s.consumer_id, s.lane ORDER BY s.ord) = 1
      AND NOT EXISTS (SELECT FROM {queue} AS q WHERE q.consumer_id = s.consumer_id AND q.lane = s.lane)
  THEN now() END, s.message
FROM s JOIN i ON i.key = s.key ORDER BY s.ord
RETURNING key`,

	Lease: `
WITH c AS MATERIALIZED (
  SELECT seq FROM {queue}
  WHERE consumer_id = $1::uuid AND due_at <= now() AND due_at >= COALESCE($5::timestamptz, '-infinity')
  ORDER BY due_at, seq LIMIT $2::int FOR UPDATE SKIP LOCKED
), q AS (
  UPDATE {queue} AS q
  SET due_at = now() + $4::bigint * interval '1 millisecond', token = $3::uuid,
    attempts = q.attempts + (q.state = 0)::int, unfinished = q.unfinished + 1
  FROM c WHERE q.seq = c.seq
  RETURNING q.*
)
SELECT ` + leasedColumns + `
FROM q JOIN {inbox} AS m ON m.key = q.key LEFT JOIN {produced} AS p ON p.key = q.key ORDER BY q.seq`,

	Renew: `
WITH c AS MATERIALIZED (SELECT seq FROM {queue} WHERE seq = $1::bigint AND token = $2::uuid FOR UPDATE SKIP LOCKED)
UPDATE {queue} AS q SET due_at = now() + $3::bigint * interval '1 millisecond' FROM c WHERE q.seq = c.seq`,

	Take:      `DELETE FROM {queue} WHERE seq = $1::bigint AND token = $2::uuid`,
	Publish:   `UPDATE {queue} SET state = 1, unfinished = 0 WHERE seq = $1::bigint AND token = $2::uuid AND state = 0`,
	Delete:    `DELETE FROM {queue} WHERE seq = $1::bigint`,
	Processed: `UPDATE {inbox} SET processed_at = now() WHERE key = $1::uuid`,
	Retry: `
UPDATE {queue} SET due_at = now() + $3::bigint * interval '1 millisecond', token = NULL,
  unfinished = CASE WHEN state = 1 THEN unfinished ELSE 0 END, last_error = $4::text
WHERE seq = $1::bigint AND token = $2::uuid`,
	Release: `
UPDATE {queue} SET due_at = now(), token = NULL, attempts = attempts - (state = 0)::int, unfinished = unfinished - 1
WHERE seq = $1::bigint AND token = $2::uuid`,
	Bury: `
UPDATE {queue} SET state = 2, due_at = NULL, token = NULL
WHERE seq = $1::bigint AND token = $2::uuid AND state = 0`,
	Hold:    `UPDATE {queue} SET due_at = now() + $3::bigint * interval '1 millisecond' WHERE seq = $1::bigint AND token = $2::uuid`,
	Delay:   `UPDATE {queue} SET due_at = now() + $2::bigint * interval '1 millisecond' WHERE seq = $1::bigint`,
	Because: `UPDATE {queue} SET last_error = $2::text WHERE seq = $1::bigint`,
	NextDue: `
SELECT (extract(epoch FROM due_at - clock_timestamp()) * 1000)::bigint FROM {queue}
WHERE consumer_id = $1::uuid AND due_at IS NOT NULL ORDER BY due_at LIMIT 1`,
	LockLane: `SELECT pg_advisory_xact_lock($1::bigint)`,
	Promote: `
UPDATE {queue} SET due_at = now()
WHERE seq = (SELECT min(seq) FROM {queue} WHERE consumer_id = $1::uuid AND lane = $2::bigint) AND due_at IS NULL AND state = 0`,
	BlockedLanes: `
WITH RECURSIVE l AS (
  SELECT min(lane) AS lane FROM {queue} WHERE consumer_id = $1::uuid
  UNION ALL
  SELECT (SELECT min(n.lane) FROM {queue} AS n WHERE n.consumer_id = $1::uuid AND n.lane > l.lane) FROM l WHERE l.lane IS NOT NULL
)
SELECT h.lane FROM l JOIN {queue} AS h ON h.seq = (SELECT min(f.seq) FROM {queue} AS f WHERE f.consumer_id = $1::uuid AND f.lane = l.lane)
WHERE h.state = 0 AND h.due_at IS NULL`,

	FindStep:    `SELECT result FROM {steps} WHERE key = $1::uuid AND name = $2::text`,
	PutStep:     `INSERT INTO {steps} (key, name, result) VALUES ($1::uuid, $2::text, $3::bytea) ON CONFLICT (key, name) DO NOTHING`,
	ForgetSteps: "DELETE FROM {steps} WHERE key = $1::uuid",
	OwnOperation: `
INSERT INTO {operations} (key, fingerprint, created_at, scope, operation_id, owner)
SELECT $1::uuid, $2::uuid, now(), $3::text, $4::text, $6::uuid
WHERE pg_try_advisory_xact_lock($5::bigint)
ON CONFLICT (key) DO NOTHING`,
	TakeOverOperation: `
UPDATE {operations} AS o SET owner = $3::uuid, fingerprint = $2::uuid
WHERE o.key = $1::uuid AND o.owner IS NOT NULL AND NOT EXISTS (SELECT FROM {queue} AS q WHERE q.key = o.owner)`,
	OwnerOf: `
SELECT owner, EXISTS (SELECT FROM {queue} AS q WHERE q.key = o.owner), fingerprint, scope, operation_id, result, messages
FROM {operations} AS o WHERE o.key = $1::uuid`,
	CompleteOperation: `UPDATE {operations} SET owner = NULL, result = $2::bytea, messages = $3::bytea WHERE key = $1::uuid AND owner = $4::uuid`,
	FreeOperations:    `DELETE FROM {operations} WHERE owner = $1::uuid`,

	Requeue: `UPDATE {queue} SET state = 0, due_at = now(), received_at = now(), attempts = 0, unfinished = 0 WHERE seq = $1::bigint AND state = 2`,
	Kill:    `DELETE FROM {queue} WHERE seq = $1::bigint`,
	RowOf:   `SELECT key, consumer_id, lane FROM {queue} WHERE seq = $1::bigint FOR UPDATE`,
	Counts: `
SELECT m.consumer, count(*) FILTER (WHERE q.state = 0), count(*) FILTER (WHERE q.state = 1), count(*) FILTER (WHERE q.state = 2),
  COALESCE((extract(epoch FROM now() - min(q.received_at) FILTER (WHERE q.state = 0)) * 1000)::bigint, 0)
FROM {queue} AS q JOIN {inbox} AS m ON m.key = q.key GROUP BY m.consumer ORDER BY m.consumer`,
	Old: `
SELECT q.seq, q.state, q.attempts, (extract(epoch FROM now() - q.received_at) * 1000)::bigint, COALESCE(q.last_error, ''),
  m.consumer, m.source, m.message_id
FROM {queue} AS q JOIN {inbox} AS m ON m.key = q.key
WHERE q.received_at <= now() - $1::bigint * interval '1 millisecond' ORDER BY q.seq LIMIT $2::int`,
}
