-- No UNIQUE: nothing but the inbox keeps a second charge out.
CREATE TABLE charges (
  order_id bigint NOT NULL,
  cents    bigint NOT NULL
);
