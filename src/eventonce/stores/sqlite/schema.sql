-- The tables of format 2. `admin.py` runs this statement by statement. Another application may use
-- the file too: our tables have a prefix, and nothing else in the file is touched.
--
-- A later minor version adds columns (ALTER TABLE ... ADD COLUMN) and does not change the format:
-- no statement of this release names all columns of a table or replaces a row, so it ignores added
-- columns and keeps them. An added column must say which token its value belongs to, because an
-- expired key begins anew in the same row.

-- A record is a row in each of these two tables. Keys that begin with their time sort by it, so
-- that work stays on a few pages of a large tree; but keys of events that come late, and keys
-- without a time, are spread over their part of it. So a key is written once, at its claim, and all
-- that changes is in a table that new records are appended to: a completion writes the few pages at
-- the end of it, whatever the keys are. There is no other index, because each would double the
-- cost. `until` is the instant at which the record ends, and `body` the other fields, packed by
-- codec.py.
CREATE TABLE eventonce_keys (
    key BLOB NOT NULL PRIMARY KEY,
    id INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE eventonce_records (
    id INTEGER NOT NULL PRIMARY KEY,
    token INTEGER NOT NULL,
    until INTEGER NOT NULL,
    body BLOB NOT NULL
);

CREATE TABLE eventonce_letters (
    id TEXT NOT NULL PRIMARY KEY,
    consumer TEXT NOT NULL,
    status TEXT NOT NULL,
    reason TEXT NOT NULL,
    rule TEXT NOT NULL,
    key BLOB NOT NULL,
    event BLOB NOT NULL,
    at INTEGER NOT NULL,
    attempt INTEGER NOT NULL
);

CREATE INDEX eventonce_letters_by_age ON eventonce_letters (at, id);

-- The format of these tables, and the key at which the last sweep stopped: the next one, in any
-- process, continues there.
CREATE TABLE eventonce_tables (
    one INTEGER NOT NULL PRIMARY KEY CHECK (one = 1),
    format INTEGER NOT NULL,
    swept BLOB NOT NULL
);

INSERT INTO eventonce_tables (one, format, swept) VALUES (1, 2, x'');
