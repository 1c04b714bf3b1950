-- What handlers returned, kept until an ack proves that it was published. One row for each message, in a table of its
-- own: the memory stays insert-only.
CREATE TABLE {produced} (
  key         BLOB    NOT NULL PRIMARY KEY,  -- of the memory row
  recorded_at INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000 AS INTEGER)),
  handler     TEXT    NOT NULL,
  messages    BLOB    NOT NULL
) STRICT, WITHOUT ROWID;
