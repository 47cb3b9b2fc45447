-- The statements that the store sends while it works, by name; their functions are in other files.

-- name: claim
SELECT * FROM eventonce.claim_1(%s, %s, %s)

-- name: settle
SELECT * FROM eventonce.settle_1(%s, %s, %s)

-- name: settle_in_transaction
-- Also returns whether this is still the transaction that the store opened.
SELECT s.*, coalesce(current_setting('eventonce_run.transaction', true) = 'open', false)
FROM eventonce.settle_1(%s, %s, %s) AS s

-- name: marked
SELECT coalesce(current_setting('eventonce_run.transaction', true) = 'open', false)

-- name: show
SELECT
    token, attempt, nonce, held_until, expires, done, by, result, digests, dead, "order", at,
    tried, trying, dirty, alone, spared
FROM eventonce.records
WHERE key = %s AND eventonce.clock_1(NULL) < greatest(expires, held_until)

-- name: put_letters
-- In the order of ids, so that two calls with the same dead letters cannot deadlock; of two dead
-- letters with one id the first is stored.
INSERT INTO eventonce.letters (id, consumer, status, reason, rule, key, event, at, attempt)
SELECT id, consumer, status, reason, rule, key, event, at, attempt
FROM unnest(
    %s::bytea[], %s::bytea[], %s::bytea[], %s::bytea[], %s::bytea[], %s::bytea[], %s::bytea[],
    %s::bigint[], %s::integer[]
) WITH ORDINALITY AS l (id, consumer, status, reason, rule, key, event, at, attempt, place)
ORDER BY id, place
ON CONFLICT (id) DO NOTHING
RETURNING at

-- name: letters
SELECT id, consumer, status, reason, rule, key, event, at, attempt
FROM eventonce.letters
WHERE (at, id) > (%s, %s) AND consumer = coalesce(%s::bytea, consumer)
ORDER BY at, id
LIMIT %s

-- name: letter
SELECT id, consumer, status, reason, rule, key, event, at, attempt
FROM eventonce.letters
WHERE id = %s

-- name: drop_letters
WITH doomed AS (
    SELECT id FROM eventonce.letters
    WHERE id = ANY (%s::bytea[]) AND at < coalesce(%s::bigint, at + 1)
    ORDER BY id FOR UPDATE
),
gone AS (
    DELETE FROM eventonce.letters WHERE id IN (SELECT id FROM doomed) RETURNING id
)
SELECT count(*) FROM gone

-- name: sweep
SELECT looked, dropped FROM eventonce.sweep_1(%s, %s)

-- name: forget
WITH doomed AS (
    SELECT key FROM eventonce.records WHERE key = ANY (%s::bytea[]) ORDER BY key FOR UPDATE
),
gone AS (
    DELETE FROM eventonce.records WHERE key IN (SELECT key FROM doomed) RETURNING key
)
SELECT count(*) FROM gone

-- name: clear_results
WITH doomed AS (
    SELECT key FROM eventonce.records WHERE key = ANY (%s::bytea[]) ORDER BY key FOR UPDATE
),
cleared AS (
    UPDATE eventonce.records SET result = NULL
    WHERE key IN (SELECT key FROM doomed) AND result IS NOT NULL RETURNING key
)
SELECT count(*) FROM cleared

-- name: names
-- The row under the key `names` is no record: its digests are the names of the consumers, and it
-- never expires. A separate table would be missing in older schemas, and so would its rights.
SELECT unnest(digests) FROM eventonce.records WHERE key = 'names'

-- name: add_name
INSERT INTO eventonce.records AS r (token, expires, done, key, digests)
VALUES (0, 9007199254740992, true, 'names', ARRAY[%s::bytea])
ON CONFLICT (key) DO UPDATE SET digests = r.digests || excluded.digests
WHERE NOT r.digests @> excluded.digests
RETURNING token

-- name: stats
-- Counting a million records takes a tenth of a second; for more, the server's estimate is used.
SELECT
    CASE WHEN counted < 1000000 THEN counted ELSE greatest(counted, estimated) END,
    (SELECT count(*) FROM eventonce.letters),
    pg_total_relation_size('eventonce.records') + pg_total_relation_size('eventonce.letters')
FROM
    (
        SELECT count(*) FROM (
            SELECT 1 FROM eventonce.records WHERE key <> 'names' LIMIT 1000000
        ) AS r
    ) AS c (counted),
    (
        SELECT reltuples::bigint FROM pg_class WHERE oid = 'eventonce.records'::regclass
    ) AS e (estimated)
