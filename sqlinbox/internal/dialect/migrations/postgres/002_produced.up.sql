-- What handlers returned, kept until an ack proves that it was published. One row for each message, in a table of its
-- own: the memory stays insert-only.
CREATE TABLE {produced} (
  key         uuid        NOT NULL PRIMARY KEY,  -- of the memory row
  recorded_at timestamptz NOT NULL DEFAULT now(),
  handler     text COLLATE "C" NOT NULL,
  messages    bytea       NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);
