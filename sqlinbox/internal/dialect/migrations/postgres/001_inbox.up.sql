-- The memory: one row for each message that was handled. Rows are only inserted and, after the retention, deleted.
CREATE TABLE {inbox} (
  key           uuid        NOT NULL PRIMARY KEY,    -- derived from consumer, source and message_id
  fingerprint   uuid        NOT NULL,                -- 16 bytes of SHA-256 over the content
  received_at   timestamptz NOT NULL DEFAULT now(),
  processed_at  timestamptz,                         -- NULL: waits in the two-phase queue
  message_time  timestamptz,                         -- when the producer made it; NULL: unknown
  consumer      text COLLATE "C" NOT NULL,           -- text columns: printable ASCII, every other byte as \xNN
  source        text COLLATE "C" NOT NULL,
  message_id    text COLLATE "C" NOT NULL,
  topic         text COLLATE "C" NOT NULL,
  horizon_scope text COLLATE "C" NOT NULL DEFAULT ''
);

-- The key scheme of each consumer, fixed by its first message.
CREATE TABLE {consumers} (
  id         uuid        NOT NULL PRIMARY KEY,       -- derived from consumer
  consumer   text COLLATE "C" NOT NULL,
  key_scheme text COLLATE "C" NOT NULL,
  created_at timestamptz NOT NULL DEFAULT now()
);

-- The latest message time that was forgotten: a first delivery not after it may be a forgotten duplicate.
CREATE TABLE {horizons} (
  id       uuid        NOT NULL PRIMARY KEY,         -- derived from consumer, source and scope
  consumer text COLLATE "C" NOT NULL,
  source   text COLLATE "C" NOT NULL,
  scope    text COLLATE "C" NOT NULL DEFAULT '',
  horizon  timestamptz NOT NULL
);
