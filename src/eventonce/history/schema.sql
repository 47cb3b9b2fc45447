-- The tables of a history. A name in braces is a type that differs between SQLite and PostgreSQL:
-- two kinds of auto-increment column, and bytes (see driver.py).

CREATE TABLE IF NOT EXISTS eventonce_history_kinds (
  kind {number},
  consumer TEXT NOT NULL,
  worker TEXT NOT NULL,
  channel TEXT NOT NULL,
  status TEXT NOT NULL,
  same_id SMALLINT NOT NULL,
  rule TEXT NOT NULL,
  type TEXT NOT NULL,
  source TEXT NOT NULL,
  seen BIGINT NOT NULL,
  UNIQUE (consumer, worker, channel, status, same_id, rule, type, source)
);

CREATE TABLE IF NOT EXISTS eventonce_history (
  number {row},
  kind BIGINT NOT NULL,
  id_hash BIGINT NOT NULL,
  conversation_hash BIGINT NOT NULL,
  key_hash BIGINT NOT NULL,
  at BIGINT NOT NULL,
  reason TEXT NOT NULL,
  id TEXT NOT NULL,
  conversation TEXT NOT NULL,
  key {octets} NOT NULL,
  version BIGINT NOT NULL,
  attempt INTEGER NOT NULL,
  took BIGINT NOT NULL,
  receives INTEGER NOT NULL,
  happened BIGINT NOT NULL
);

CREATE TABLE IF NOT EXISTS eventonce_history_minutes (
  minute BIGINT NOT NULL,
  kind BIGINT NOT NULL,
  events BIGINT NOT NULL,
  took BIGINT NOT NULL,
  PRIMARY KEY (minute, kind)
);

CREATE TABLE IF NOT EXISTS eventonce_history_subjects (
  key {octets} PRIMARY KEY,
  subject TEXT NOT NULL,
  seen BIGINT NOT NULL
);
CREATE INDEX IF NOT EXISTS eventonce_history_subjects_subject
  ON eventonce_history_subjects (subject);

CREATE TABLE IF NOT EXISTS eventonce_history_workers (
  worker TEXT NOT NULL,
  consumer TEXT NOT NULL,
  channel TEXT NOT NULL,
  process TEXT NOT NULL,
  started BIGINT NOT NULL,
  told BIGINT NOT NULL,
  state TEXT NOT NULL,
  PRIMARY KEY (worker, consumer, channel, process)
);

CREATE INDEX IF NOT EXISTS eventonce_history_conversation
  ON eventonce_history (conversation_hash) WHERE conversation_hash <> 0;
CREATE INDEX IF NOT EXISTS eventonce_history_id ON eventonce_history (id_hash) WHERE id_hash <> 0;
CREATE INDEX IF NOT EXISTS eventonce_history_key
  ON eventonce_history (key_hash) WHERE key_hash <> 0;
-- Only the most frequent decisions have no reason: this index finds a failure among a million copies.
CREATE INDEX IF NOT EXISTS eventonce_history_reason_4
  ON eventonce_history (kind, number) WHERE reason <> '';
