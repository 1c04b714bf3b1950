-- Messages that are stored to be handled later, beside their memory row, whose processed_at is NULL until then. A row is
-- deleted when its message is handled and published.
CREATE TABLE {queue} (
  seq         INTEGER PRIMARY KEY AUTOINCREMENT,
  key         BLOB    NOT NULL,               -- of the memory row
  consumer_id BLOB    NOT NULL,               -- derived from consumer
  lane        INTEGER,                        -- derived from consumer and order key; NULL: no order
  state       INTEGER NOT NULL DEFAULT 0,     -- 0 waits, 1 is being published, 2 is dead
  due_at      INTEGER,                        -- not before, and the end of the lease; NULL: not ready at all
  token       BLOB,                           -- of the lease
  attempts    INTEGER NOT NULL DEFAULT 0,     -- starts
  unfinished  INTEGER NOT NULL DEFAULT 0,     -- starts in a row that had no end
  received_at INTEGER NOT NULL,
  last_error  TEXT,
  message     BLOB    NOT NULL                -- UUID, metadata and payload
) STRICT;
CREATE INDEX {queue_due} ON {queue} (consumer_id, due_at, seq) WHERE due_at IS NOT NULL;
CREATE INDEX {queue_lane} ON {queue} (consumer_id, lane, seq) WHERE lane IS NOT NULL;
CREATE INDEX {queue_key} ON {queue} (key);

-- What the steps of queued messages and operations gave.
CREATE TABLE {steps} (
  key    BLOB NOT NULL,                       -- of the message, or of the operation
  name   TEXT NOT NULL,
  result BLOB NOT NULL,
  PRIMARY KEY (key, name)
) STRICT, WITHOUT ROWID;

-- Locks for lanes, where a database needs rows for them: not here.
CREATE TABLE {lanes} (slot INTEGER NOT NULL PRIMARY KEY) STRICT;
