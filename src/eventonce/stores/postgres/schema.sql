-- The tables of format 1, and the types of claims and settlements. `eventonce` is replaced by the
-- name of the schema if another one was chosen.
--
-- A later minor version only adds: columns to these tables, and functions and types under the next
-- number (claim_2 beside claim_1), so that two releases work side by side. No statement of this
-- release writes a whole row, so it keeps columns that it does not know. An added column must say
-- which token its value belongs to, because an expired key begins anew in the same row.

CREATE SCHEMA IF NOT EXISTS eventonce;

-- The format and the steps (additions) of this schema: `format` rises when older releases can no
-- longer work with it, `step` with every addition.
CREATE TABLE eventonce.formats (
    format integer NOT NULL,
    step integer NOT NULL,
    since timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (format, step)
);

-- One row a key. Empty values of a record (0, empty, false) are NULL, which takes no space. The key
-- has the only index: an update changes no index as long as the page has room for both versions of
-- the row; the fillfactor leaves that room.
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

-- Text as UTF-8 bytes: an error message may contain characters that a text column refuses, and an
-- event whose dead letter cannot be stored never ends. `convert_from(reason, 'UTF8')` shows it.
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

-- The key at which the last sweep stopped: the next one, in any process, continues there.
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
