-- The memory of business operations: one row for each that was done. What it gave is written into its row in the same
-- transaction, so that whoever can read the row can read the result.
CREATE TABLE IF NOT EXISTS {operations} (
  `key`        BINARY(16)  NOT NULL PRIMARY KEY,   -- derived from scope and operation_id
  fingerprint  BINARY(16)  NOT NULL,               -- 16 bytes of SHA-256 over the content
  created_at   DATETIME(6) NOT NULL,
  scope        TEXT        NOT NULL,               -- text columns: printable ASCII, every other byte as \xNN
  operation_id TEXT        NOT NULL,
  owner        BINARY(16),                         -- the queued message that has it in hand; NULL: it is done
  result       LONGBLOB,                           -- what Do recorded
  messages     LONGBLOB,                           -- what the handler returned
  INDEX owner (owner)
) ENGINE = InnoDB CHARACTER SET ascii COLLATE ascii_bin;
