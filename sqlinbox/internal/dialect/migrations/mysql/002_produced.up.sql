-- What handlers returned, kept until an ack proves that it was published. One row for each message, in a table of its
-- own: the memory stays insert-only.
CREATE TABLE IF NOT EXISTS {produced} (
  `key`       BINARY(16)  NOT NULL PRIMARY KEY,    -- of the memory row
  recorded_at DATETIME(6) NOT NULL,
  handler     TEXT        NOT NULL,
  messages    LONGBLOB    NOT NULL
) ENGINE = InnoDB CHARACTER SET ascii COLLATE ascii_bin;
