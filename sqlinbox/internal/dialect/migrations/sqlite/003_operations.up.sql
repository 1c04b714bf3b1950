-- The memory of business operations: one row for each that was done. What it gave is written into its row in the same
-- transaction, so that whoever can read the row can read the result.
CREATE TABLE {operations} (
  key          BLOB    NOT NULL PRIMARY KEY,  -- derived from scope and operation_id
  fingerprint  BLOB    NOT NULL,              -- 16 bytes of SHA-256 over the content
  created_at   INTEGER NOT NULL,
  scope        TEXT    NOT NULL,              -- text columns: printable ASCII, every other byte as \xNN
  operation_id TEXT    NOT NULL,
  owner        BLOB,                          -- the queued message that has it in hand; NULL: it is done
  result       BLOB,                          -- what Do recorded
  messages     BLOB                           -- what the handler returned
) STRICT, WITHOUT ROWID;
CREATE INDEX {operations_owner} ON {operations} (owner) WHERE owner IS NOT NULL;
