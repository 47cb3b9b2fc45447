-- The tables of format 1. `admin.py` runs this statement by statement. The file may be another
-- application's too: our tables are known by their prefix, and nothing else in it is touched.
--
-- A later minor version adds columns (ALTER TABLE ... ADD COLUMN) and leaves the format as it is:
-- no statement of this release names all columns of a table or replaces a row, so it reads past
-- what was added and keeps it. An added column says which token its value belongs to, for a key
-- whose record expired begins anew in the same row.

-- One row a key. Keys sort by time, so that work stays on a few pages of a large tree; there is no
-- index on anything else, because each would cost as much again. `until` is the instant up to which
-- the record lives and `body` what codec.py makes of the rest.
CREATE TABLE eventonce_records (
    key BLOB NOT NULL PRIMARY KEY,
    token INTEGER NOT NULL,
    until INTEGER NOT NULL,
    body BLOB NOT NULL
) WITHOUT ROWID;

-- Always empty at a commit: `queries.py` says what for.
CREATE INDEX eventonce_strays ON eventonce_records (key) WHERE token < 0;

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

INSERT INTO eventonce_tables (one, format, swept) VALUES (1, 1, x'');
