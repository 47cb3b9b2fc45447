-- The tables of format 1, and the shapes in which claims and settlements arrive. `eventonce` is
-- replaced by the schema's name where another one was chosen.
--
-- A later minor version only adds: columns to these tables, and functions and types under the next
-- number (claim_2 beside claim_1), so that two releases work side by side. No statement of this
-- release writes a whole row, so it keeps what it does not know. What stands in an added column
-- must say which token it belongs to, for an expired key begins anew in the same row.

CREATE SCHEMA IF NOT EXISTS eventonce;

-- Which format, and how many additions to it, are here: `format` rises when older releases can no
-- longer work, `step` with every addition.
CREATE TABLE eventonce.formats (
    format integer NOT NULL,
    step integer NOT NULL,
    since timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (format, step)
);

-- One row a key. Where the law's record has nothing (0, empty, false) the row has NULL, which takes
-- no space. There is no index but the key's: an update then touches no index at all as long as the
-- row's page has room for both versions, which is what the fillfactor leaves.
CREATE TABLE eventonce.records (
    token bigint NOT NULL,
    expires bigint NOT NULL,
    held_until bigint,
    nonce bigint,
    "order" bigint,
    at bigint,
    tried bigint,
    attempt integer,
    spared integer,
    done boolean NOT NULL,
    dirty boolean,
    alone boolean,
    key bytea PRIMARY KEY,
    by bytea,
    trying bytea,
    digests bytea[],
    dead bytea[],
    result bytea
) WITH (fillfactor = 55, autovacuum_vacuum_scale_factor = 0.05);

-- Text as UTF-8 bytes: an error message may hold what a text column refuses, and a letter that
-- cannot be kept is an event that never ends. `convert_from(reason, 'UTF8')` shows it.
CREATE TABLE eventonce.letters (
    id bytea PRIMARY KEY,
    consumer bytea NOT NULL,
    status bytea NOT NULL,
    reason bytea NOT NULL,
    rule bytea NOT NULL,
    key bytea NOT NULL,
    event bytea NOT NULL,
    at bigint NOT NULL,
    attempt integer NOT NULL
);

CREATE INDEX letters_by_age ON eventonce.letters (at, id);

-- Where the last sweep stopped: the next one goes on there, whoever does it.
CREATE TABLE eventonce.sweeps (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    swept bytea NOT NULL DEFAULT ''
);

INSERT INTO eventonce.sweeps DEFAULT VALUES;

CREATE TYPE eventonce.asked_1 AS (
    key bytea,
    nonce bigint,
    lease bigint,
    remember bigint,
    attempts integer,
    by bytea,
    sliding boolean,
    digest bytea,
    "order" bigint,
    at bigint,
    unchanged_within bigint,
    redrive boolean,
    peek boolean,
    alone boolean
);

CREATE TYPE eventonce.ended_1 AS (
    key bytea,
    token bigint,
    action text,
    nonce bigint,
    lease bigint,
    remember bigint,
    by bytea,
    digest bytea,
    "order" bigint,
    at bigint,
    result bytea
);

INSERT INTO eventonce.formats (format, step) VALUES (1, 1);
