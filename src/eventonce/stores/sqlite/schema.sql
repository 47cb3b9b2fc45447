-- The tables of format 2. `admin.py` runs this statement by statement. The file may be another
-- application's too: our tables are known by their prefix, and nothing else in it is touched.
--
-- A later minor version adds columns (ALTER TABLE ... ADD COLUMN) and leaves the format as it is:
-- no statement of this release names all columns of a table or replaces a row, so it reads past
-- what was added and keeps it. An added column says which token its value belongs to, for a key
-- whose record expired begins anew in the same row.

-- A record is a row in each of these. Keys that begin with their time sort by it, so that work stays
-- on a few pages of a large tree; but keys of one second, and keys without a time, fall anywhere in
-- their part of it. So a key is written there once, at its claim, and all that changes stands in a
-- table that new records are appended to: a completion writes the few pages at its end, whatever
-- the keys are. There is no index on anything else, because each would cost as much again. `until`
-- is the instant up to which the record lives and `body` what codec.py makes of the rest.
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

-- Which format these tables have, and where the last sweep stopped: the next one goes on there, in
-- whichever process it runs.
CREATE TABLE eventonce_tables (
    one INTEGER NOT NULL PRIMARY KEY CHECK (one = 1),
    format INTEGER NOT NULL,
    swept BLOB NOT NULL
);

INSERT INTO eventonce_tables (one, format, swept) VALUES (1, 2, x'');
