-- The memory of business operations: one row for each that was done. What it gave is written into its row in the same
-- transaction, so that whoever can read the row can read the result.
CREATE TABLE {operations} (
  key          uuid        NOT NULL PRIMARY KEY,  -- derived from scope and operation_id
  fingerprint  uuid        NOT NULL,              -- 16 bytes of SHA-256 over the content
  created_at   timestamptz NOT NULL DEFAULT now(),
  scope        text COLLATE "C" NOT NULL,         -- text columns: printable ASCII, every other byte as \xNN
  operation_id text COLLATE "C" NOT NULL,
  owner        uuid,                              -- the queued message that has it in hand; NULL: it is done
  result       bytea,                             -- what Do recorded
  messages     bytea                              -- what the handler returned
);
CREATE INDEX ON {operations} (owner) WHERE owner IS NOT NULL;
