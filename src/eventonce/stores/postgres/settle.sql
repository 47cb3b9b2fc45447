-- The law of `ledger.settle`, for a batch. Returns one row a settlement, in no particular order:
-- kept, fenced, unknown; or locked, which is not an answer of the law, for a row that stays locked.
--
-- Rows are locked in the order of their keys; then the clock is read, and they are judged and
-- written. With `patient` false, rows that others have locked are skipped.

CREATE FUNCTION eventonce.settle_1(ended eventonce.ended_1[], instant bigint, patient boolean)
RETURNS TABLE (key bytea, kept text)
LANGUAGE plpgsql VOLATILE
SET lock_timeout = '500ms'
SET plan_cache_mode = force_generic_plan -- a new plan for each call costs more than the call
SET enable_seqscan = off -- a plan made for a small table is kept when the table is large
AS $$
#variable_conflict use_column
DECLARE
    unsettled CONSTANT bigint := 86400000; -- ledger.UNSETTLED
    kept_digests CONSTANT integer := 16; -- ledger.KEPT_DIGESTS
    longest_lease CONSTANT bigint := 900000; -- ledger.LONGEST_LEASE
    keys bytea[];
    locked bytea[] := '{}';
    moment bigint;
BEGIN
    SELECT array_agg(e.key) INTO keys FROM unnest(ended) AS e;
    IF patient THEN
        SELECT coalesce(array_agg(l.key), '{}') INTO locked FROM (
            SELECT r.key FROM eventonce.records AS r
            WHERE r.key = ANY (keys) ORDER BY r.key FOR UPDATE
        ) AS l;
    ELSE
        SELECT coalesce(array_agg(l.key), '{}') INTO locked FROM (
            SELECT r.key FROM eventonce.records AS r
            WHERE r.key = ANY (keys) ORDER BY r.key FOR UPDATE SKIP LOCKED
        ) AS l;
    END IF;

    moment := eventonce.clock_1(instant);

    RETURN QUERY
    WITH seen AS (
        SELECT
            e.*,
            coalesce(moment < r.expires OR moment < r.held_until, false) AS lives,
            cardinality(locked) = cardinality(keys) OR e.key = ANY (locked) AS ours,
            r.token AS r_token,
            r.attempt AS r_attempt,
            coalesce(r.nonce, 0) AS r_nonce,
            coalesce(r.held_until, 0) AS r_held_until,
            r.expires AS r_expires,
            coalesce(r.done, false) AS r_done,
            r.by AS r_by,
            r.result AS r_result,
            coalesce(r.digests, '{}') AS r_digests,
            coalesce(r.dead, '{}') AS r_dead,
            r."order" AS r_order,
            r.at AS r_at,
            r.tried AS r_tried,
            r.trying AS r_trying,
            r.dirty AS r_dirty,
            r.alone AS r_alone,
            coalesce(r.spared, 0) AS r_spared
        FROM unnest(ended) AS e
        LEFT JOIN LATERAL (
            SELECT * FROM eventonce.records AS r WHERE r.key = e.key OFFSET 0
        ) AS r ON true
    ),
    judged AS MATERIALIZED (
        SELECT
            s.*,
            CASE
                WHEN s.action <> 'complete' THEN s.r_dead
                WHEN s."order" IS NOT NULL THEN array_remove(s.r_dead, s.digest)
                ELSE '{}'
            END AS n_dead,
            CASE
                WHEN NOT s.lives THEN 'unknown'
                -- The row did not exist when rows were locked: forgotten, then claimed again.
                WHEN patient AND NOT s.ours THEN 'unknown'
                WHEN s.token <> s.r_token THEN 'fenced'
                WHEN s.action = 'complete' AND s."order" IS NULL THEN 'complete'
                -- The same completion again: the order may have advanced since.
                WHEN s.action = 'complete' AND s.r_done THEN 'kept'
                WHEN s.action = 'complete' THEN 'complete'
                WHEN s.r_done THEN 'fenced'
                WHEN s.action = 'bury' AND s.digest = ANY (s.r_dead) THEN 'kept'
                WHEN s.action = 'bury' THEN 'bury'
                -- Already freed or buried: a late renewal must not take the lease back.
                WHEN
                    s.nonce <> s.r_nonce
                    AND s.action IN ('release', 'return')
                    AND s.digest <> ALL (s.r_dead)
                    THEN 'kept'
                WHEN s.nonce <> s.r_nonce THEN 'fenced'
                ELSE s.action
            END AS law
        FROM seen AS s
    ),
    written AS (
        INSERT INTO eventonce.records AS r (
            token, expires, held_until, nonce, "order", at, tried, attempt, spared, done, dirty,
            alone, key, by, trying, digests, dead, result
        )
        SELECT
            j.token,
            CASE j.law
                WHEN 'complete' THEN moment + CASE
                    WHEN j.n_dead = '{}' THEN j.remember
                    ELSE greatest(j.remember, unsettled)
                END
                WHEN 'bury' THEN greatest(j.r_expires, moment + greatest(j.remember, unsettled))
                ELSE j.r_expires
            END,
            CASE j.law
                WHEN 'complete' THEN NULL
                WHEN 'extend' THEN greatest(
                    moment + j.lease,
                    least(j.r_held_until, moment + greatest(j.lease, longest_lease))
                )
                ELSE least(j.r_held_until, moment)
            END,
            CASE WHEN j.law = 'extend' THEN j.r_nonce END,
            CASE WHEN j.law = 'complete' THEN j."order" ELSE j.r_order END,
            CASE
                WHEN j.law <> 'complete' THEN j.r_at
                WHEN j."order" IS NOT NULL THEN j.at
            END,
            CASE WHEN j.law <> 'complete' OR j."order" IS NOT NULL THEN j.r_tried END,
            CASE WHEN j.law <> 'complete' THEN j.r_attempt END,
            CASE WHEN j.law <> 'complete' THEN j.r_spared + (j.law = 'return')::integer END,
            j.law = 'complete',
            CASE WHEN j.law <> 'complete' THEN j.r_dirty END,
            CASE WHEN j.law <> 'complete' THEN j.r_alone END,
            j.key,
            CASE WHEN j.law = 'complete' THEN j.by ELSE j.r_by END,
            CASE WHEN j.law <> 'complete' THEN j.r_trying END,
            CASE
                WHEN j.law <> 'complete' THEN j.r_digests
                WHEN j."order" = j.r_order
                    THEN (j.r_digests || j.digest)[
                        greatest(1, cardinality(j.r_digests) + 2 - kept_digests):
                    ]
                WHEN j."order" IS NOT NULL OR j.digest <> '' THEN ARRAY[j.digest]
            END,
            CASE
                WHEN j.law = 'bury'
                    THEN (j.r_dead || j.digest)[greatest(1, cardinality(j.r_dead) + 2 - kept_digests):]
                ELSE j.n_dead
            END,
            CASE WHEN j.law = 'complete' THEN j.result ELSE j.r_result END
        FROM judged AS j
        WHERE j.ours AND j.law IN ('complete', 'bury', 'release', 'return', 'extend')
        ORDER BY j.key
        ON CONFLICT (key) DO UPDATE SET
            expires = excluded.expires,
            held_until = nullif(excluded.held_until, 0),
            nonce = nullif(excluded.nonce, 0),
            "order" = excluded."order",
            at = nullif(excluded.at, 0),
            tried = excluded.tried,
            attempt = nullif(excluded.attempt, 0),
            spared = nullif(excluded.spared, 0),
            done = excluded.done,
            dirty = nullif(excluded.dirty, false),
            alone = nullif(excluded.alone, false),
            by = nullif(excluded.by, ''),
            trying = nullif(excluded.trying, ''),
            digests = nullif(excluded.digests, '{}'),
            dead = nullif(excluded.dead, '{}'),
            result = excluded.result
    )
    SELECT
        j.key,
        CASE
            WHEN j.law IN ('kept', 'fenced', 'unknown') THEN j.law
            WHEN j.ours THEN 'kept'
            ELSE 'locked'
        END
    FROM judged AS j;
END
$$;
