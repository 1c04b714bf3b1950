-- The memory: one row for each message that was handled. Rows are only inserted and, after the retention, deleted.
-- Times are Unix milliseconds.
CREATE TABLE {inbox} (
  key           BLOB    NOT NULL PRIMARY KEY,   -- 16 bytes, derived from consumer, source and message_id
  fingerprint   BLOB    NOT NULL,               -- 16 bytes of SHA-256 over the content
  received_at   INTEGER NOT NULL,
  processed_at  INTEGER,                        -- NULL: waits in the two-phase queue
  message_time  INTEGER,                        -- when the producer made it; NULL: unknown
  consumer      TEXT    NOT NULL,               -- text columns: printable ASCII, every other byte as \xNN
  source        TEXT    NOT NULL,
  message_id    TEXT    NOT NULL,
  topic         TEXT    NOT NULL,
  horizon_scope TEXT    NOT NULL DEFAULT ''
) STRICT, WITHOUT ROWID;

-- The key scheme of each consumer, fixed by its first message.
CREATE TABLE {consumers} (
  id         BLOB    NOT NULL PRIMARY KEY,      -- derived from consumer
  consumer   TEXT    NOT NULL,
  key_scheme TEXT    NOT NULL,
  created_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- The latest message time that was forgotten: a first delivery not after it may be a forgotten duplicate.
CREATE TABLE {horizons} (
  id       BLOB    NOT NULL PRIMARY KEY,        -- derived from consumer, source and scope
  consumer TEXT    NOT NULL,
  source   TEXT    NOT NULL,
  scope    TEXT    NOT NULL DEFAULT '',
  horizon  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
