-- Messages that are stored to be handled later, beside their memory row, whose processed_at is NULL until then. A row is
-- deleted when its message is handled and published.
CREATE TABLE {queue} (
  seq         bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  key         uuid        NOT NULL,               -- of the memory row
  consumer_id uuid        NOT NULL,               -- derived from consumer
  lane        bigint,                             -- derived from consumer and order key; NULL: no order
  state       smallint    NOT NULL DEFAULT 0,     -- 0 waits, 1 is being published, 2 is dead
  due_at      timestamptz DEFAULT now(),          -- not before, and the end of the lease; NULL: not ready at all
  token       uuid,                               -- of the lease
  attempts    integer     NOT NULL DEFAULT 0,     -- starts
  unfinished  integer     NOT NULL DEFAULT 0,     -- starts in a row that had no end
  received_at timestamptz NOT NULL DEFAULT now(),
  last_error  text,
  message     bytea       NOT NULL                -- UUID, metadata and payload
) WITH (fillfactor = 85, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE {queue} ALTER message SET STORAGE EXTERNAL;
CREATE INDEX ON {queue} (consumer_id, due_at, seq) WHERE due_at IS NOT NULL;
CREATE INDEX ON {queue} (consumer_id, lane, seq) WHERE lane IS NOT NULL;
CREATE INDEX ON {queue} (key);

-- What the steps of queued messages and operations gave.
CREATE TABLE {steps} (
  key    uuid  NOT NULL,                          -- of the message, or of the operation
  name   text  COLLATE "C" NOT NULL,
  result bytea NOT NULL,
  PRIMARY KEY (key, name)
);

-- Locks for lanes, where a database needs rows for them: not here.
CREATE TABLE {lanes} (slot integer NOT NULL PRIMARY KEY);
