-- Messages that are stored to be handled later, beside their memory row, whose processed_at is NULL until then. A row is
-- deleted when its message is handled and published.
CREATE TABLE IF NOT EXISTS {queue} (
  seq         BIGINT      NOT NULL PRIMARY KEY AUTO_INCREMENT,
  `key`       BINARY(16)  NOT NULL,               -- of the memory row
  consumer_id BINARY(16)  NOT NULL,               -- derived from consumer
  lane        BIGINT,                             -- derived from consumer and order key; NULL: no order
  state       SMALLINT    NOT NULL DEFAULT 0,     -- 0 waits, 1 is being published, 2 is dead
  due_at      DATETIME(6),                        -- not before, and the end of the lease; NULL: not ready at all
  token       BINARY(16),                         -- of the lease
  attempts    INT         NOT NULL DEFAULT 0,     -- starts
  unfinished  INT         NOT NULL DEFAULT 0,     -- starts in a row that had no end
  holds       INT         NOT NULL DEFAULT 0,     -- grows while a step runs
  received_at DATETIME(6) NOT NULL,
  last_error  TEXT,
  message     LONGBLOB    NOT NULL,               -- UUID, metadata and payload
  INDEX due (consumer_id, due_at, seq),
  INDEX lane (consumer_id, lane, seq),
  INDEX message_key (`key`)
) ENGINE = InnoDB CHARACTER SET ascii COLLATE ascii_bin;

-- What the steps of queued messages and operations gave.
CREATE TABLE IF NOT EXISTS {steps} (
  `key`  BINARY(16)   NOT NULL,                   -- of the message, or of the operation
  name   VARCHAR(500) NOT NULL,
  result LONGBLOB     NOT NULL,
  PRIMARY KEY (`key`, name)
) ENGINE = InnoDB CHARACTER SET ascii COLLATE ascii_bin;

-- Locks for lanes: a transaction that changes a lane locks the row of its slot.
CREATE TABLE IF NOT EXISTS {lanes} (slot INT NOT NULL PRIMARY KEY) ENGINE = InnoDB;
INSERT IGNORE INTO {lanes} WITH RECURSIVE n AS (SELECT 0 AS slot UNION ALL SELECT slot + 1 FROM n WHERE slot < 255) SELECT slot FROM n;
