-- The memory: one row for each message that was handled. Rows are only inserted and, after the retention, deleted.
-- Times are UTC. Every statement can be repeated: DDL commits by itself here.
CREATE TABLE IF NOT EXISTS {inbox} (
  `key`         BINARY(16)  NOT NULL PRIMARY KEY,  -- derived from consumer, source and message_id
  fingerprint   BINARY(16)  NOT NULL,              -- 16 bytes of SHA-256 over the content
  received_at   DATETIME(6) NOT NULL,
  processed_at  DATETIME(6),                       -- NULL: waits in the two-phase queue
  message_time  DATETIME(6),                       -- when the producer made it; NULL: unknown
  consumer      TEXT        NOT NULL,              -- text columns: printable ASCII, every other byte as \xNN
  source        TEXT        NOT NULL,
  message_id    TEXT        NOT NULL,
  topic         TEXT        NOT NULL,
  horizon_scope TEXT        NOT NULL
) ENGINE = InnoDB CHARACTER SET ascii COLLATE ascii_bin;

-- The key scheme of each consumer, fixed by its first message.
CREATE TABLE IF NOT EXISTS {consumers} (
  id         BINARY(16)  NOT NULL PRIMARY KEY,     -- derived from consumer
  consumer   TEXT        NOT NULL,
  key_scheme TEXT        NOT NULL,
  created_at DATETIME(6) NOT NULL
) ENGINE = InnoDB CHARACTER SET ascii COLLATE ascii_bin;

-- The latest message time that was forgotten: a first delivery not after it may be a forgotten duplicate.
CREATE TABLE IF NOT EXISTS {horizons} (
  id       BINARY(16)  NOT NULL PRIMARY KEY,       -- derived from consumer, source and scope
  consumer TEXT        NOT NULL,
  source   TEXT        NOT NULL,
  scope    TEXT        NOT NULL,
  horizon  DATETIME(6) NOT NULL
) ENGINE = InnoDB CHARACTER SET ascii COLLATE ascii_bin;
