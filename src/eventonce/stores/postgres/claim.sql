-- The law of `ledger.judge`, for a batch. Returns one row a claim, in no particular order.
--
-- 1. A first read finds the keys that are new, and the rows that may have to be written.
-- 2. New keys are inserted; of two calls that insert the same key, the second waits for the first.
-- 3. Rows that may have to be written are locked, in the order of their keys.
-- 4. The clock is read, the records are judged, and the changes written.
--
-- No deadlock: a call that waits in step 2 holds only keys that it inserted, all lower than the key
-- that it waits for. A call that waits in step 3 waits for a committed row and holds lower rows,
-- and no call that waits in step 2 holds such a row. No call waits in step 4.
--
-- A verdict that writes nothing needs no lock: it is about the committed record at this instant. So
-- a row locked by a handler's own transaction is busy while its lease lasts, without a wait. After
-- that the call waits up to `lock_timeout`, because most locks are held by another batch for a
-- short time. Then the caller asks again with `patient` false: rows still locked are busy for a
-- second, and delay no other claim.

CREATE FUNCTION eventonce.clock_1(instant bigint) RETURNS bigint
LANGUAGE sql VOLATILE AS $$
    SELECT coalesce(instant, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint)
$$;

CREATE FUNCTION eventonce.claim_1(asked eventonce.asked_1[], instant bigint, patient boolean)
RETURNS TABLE (
    key bytea,
    kind text,
    token bigint,
    attempt integer,
    wait bigint,
    same_id boolean,
    "order" bigint,
    result bytea,
    alone boolean,
    spared integer
)
LANGUAGE plpgsql VOLATILE
SET lock_timeout = '500ms'
SET plan_cache_mode = force_generic_plan -- a new plan for each call costs more than the call
SET enable_seqscan = off -- a plan made for a small table is kept when the table is large
AS $$
#variable_conflict use_column
DECLARE
    unsettled CONSTANT bigint := 86400000; -- ledger.UNSETTLED
    newer_wait_leases CONSTANT bigint := 3; -- ledger.NEWER_WAIT_LEASES
    kept_digests CONSTANT integer := 16; -- ledger.KEPT_DIGESTS
    longest_lease CONSTANT bigint := 900000; -- ledger.LONGEST_LEASE
    pause CONSTANT bigint := 1000; -- until a new claim on a locked row may help
    moment bigint := eventonce.clock_1(instant);
    fresh eventonce.asked_1[];
    won bytea[];
    rest eventonce.asked_1[];
    loud bytea[];
    locked bytea[] := '{}';
BEGIN
    -- `loud` are all rows that may be written: not those that are clearly held, or done. If a row
    -- changes between this read and its judgement, its claim is busy for a second.
    SELECT
        array_agg(a) FILTER (WHERE r.key IS NULL AND NOT a.peek),
        array_agg(a) FILTER (WHERE r.key IS NOT NULL OR a.peek),
        array_agg(a.key) FILTER (WHERE r.key IS NOT NULL AND NOT a.peek AND (
            NOT a.sliding AND NOT a.alone AND (
                moment < r.held_until AND r.held_until <= moment + greatest(a.lease, longest_lease)
                OR moment < r.expires AND CASE
                    WHEN a."order" IS NULL THEN r.done
                    ELSE a."order" < r."order"
                    OR a."order" = r."order" AND a.digest = ANY (r.digests)
                END
            )
        ) IS NOT TRUE)
    INTO fresh, rest, loud
    FROM unnest(asked) AS a
    LEFT JOIN LATERAL (
        SELECT * FROM eventonce.records AS r WHERE r.key = a.key OFFSET 0
    ) AS r ON true;

    IF fresh IS NOT NULL THEN
        WITH inserted AS (
            INSERT INTO eventonce.records AS r
                (token, expires, held_until, nonce, tried, attempt, done, dirty, alone, key, by, trying)
            SELECT
                greatest(1, moment * 1000),
                moment + greatest(a.remember, unsettled),
                moment + a.lease,
                a.nonce,
                a."order",
                1,
                false,
                nullif(a."order" IS NOT NULL, false),
                nullif(a.alone, false),
                a.key,
                CASE WHEN a."order" IS NULL THEN nullif(a.by, '') END,
                CASE WHEN a."order" IS NOT NULL THEN nullif(a.digest, '') END
            FROM unnest(fresh) AS a
            ORDER BY a.key
            ON CONFLICT (key) DO NOTHING
            RETURNING r.key
        )
        SELECT coalesce(array_agg(i.key), '{}') INTO won FROM inserted AS i;

        RETURN QUERY
        SELECT
            a.key, 'run', greatest(1, moment * 1000), 1, a.lease,
            NULL::boolean, NULL::bigint, NULL::bytea, NULL::boolean, NULL::integer
        FROM unnest(fresh) AS a
        WHERE cardinality(won) = cardinality(fresh) OR a.key = ANY (won);
        IF cardinality(won) < cardinality(fresh) THEN
            SELECT rest || array_agg(a) INTO rest FROM unnest(fresh) AS a WHERE a.key <> ALL (won);
        END IF;
        IF rest IS NULL THEN
            RETURN;
        END IF;
    END IF;

    IF loud IS NOT NULL AND patient THEN
        SELECT coalesce(array_agg(l.key), '{}') INTO locked FROM (
            SELECT r.key FROM eventonce.records AS r
            WHERE r.key = ANY (loud) ORDER BY r.key FOR UPDATE
        ) AS l;
    ELSIF loud IS NOT NULL THEN
        SELECT coalesce(array_agg(l.key), '{}') INTO locked FROM (
            SELECT r.key FROM eventonce.records AS r
            WHERE r.key = ANY (loud) ORDER BY r.key FOR UPDATE SKIP LOCKED
        ) AS l;
    END IF;

    moment := eventonce.clock_1(instant);

    RETURN QUERY
    WITH seen AS ( -- the claim, and the record with its defaults
        SELECT
            a.*,
            coalesce(moment < r.expires OR moment < r.held_until, false) AS lives,
            coalesce(r.token, 0) AS r_token,
            coalesce(r.attempt, 0) AS r_attempt,
            coalesce(r.nonce, 0) AS r_nonce,
            coalesce(r.held_until, 0) AS r_held_until,
            coalesce(r.expires, 0) AS r_expires,
            coalesce(r.done, false) AS r_done,
            coalesce(r.by, '') AS r_by,
            r.result AS r_result,
            coalesce(r.digests, '{}') AS r_digests,
            coalesce(r.dead, '{}') AS r_dead,
            r."order" AS r_order,
            coalesce(r.at, 0) AS r_at,
            r.tried AS r_tried,
            coalesce(r.trying, '') AS r_trying,
            coalesce(r.dirty, false) AS r_dirty,
            coalesce(r.alone, false) AS r_alone,
            coalesce(r.spared, 0) AS r_spared,
            -- A lease that ends too far ahead was granted before the clock was set back.
            least(coalesce(r.held_until, 0), moment + greatest(a.lease, longest_lease)) AS cut_down,
            -- A run that was not settled ended with its process; it counts only if it ran alone.
            coalesce(r.nonce, 0) <> 0 AS crashed,
            coalesce(r.spared, 0)
            + (coalesce(r.nonce, 0) <> 0 AND NOT coalesce(r.alone, false))::integer AS used_spared,
            a."order" = r.tried AND a.digest = coalesce(r.trying, '') AS this_version
        FROM unnest(rest) AS a
        LEFT JOIN LATERAL (
            SELECT * FROM eventonce.records AS r WHERE r.key = a.key OFFSET 0
        ) AS r ON true
    ),
    judged AS (
        SELECT
            s.*,
            CASE
                WHEN NOT s.lives THEN 'anew'
                WHEN s."order" IS NULL THEN CASE
                    WHEN s.r_done THEN CASE
                        WHEN s.digest <> '' AND s.r_digests <> '{}' AND s.digest <> ALL (s.r_digests)
                            THEN 'conflict'
                        ELSE 'duplicate'
                    END
                    WHEN s.r_dead <> '{}' AND NOT s.redrive THEN 'dead'
                    WHEN moment < s.r_held_until AND s.nonce = s.r_nonce THEN 'own'
                    WHEN moment < s.r_held_until THEN 'held'
                    WHEN s.r_attempt - s.used_spared >= s.attempts AND NOT s.redrive THEN 'bury'
                    ELSE 'again'
                END
                WHEN s."order" < s.r_order THEN 'stale'
                WHEN s."order" = s.r_order AND s.digest = ANY (s.r_digests) THEN 'duplicate'
                WHEN s."order" = s.r_tried AND s.digest = ANY (s.r_dead) AND NOT s.redrive
                    THEN 'dead'
                WHEN moment < s.r_held_until AND s.nonce = s.r_nonce THEN 'own'
                WHEN moment < s.r_held_until THEN 'held'
                WHEN s."order" < s.r_tried THEN CASE
                    WHEN moment < s.r_held_until + newer_wait_leases * s.lease AND s.r_dead = '{}'
                        THEN 'waits'
                    ELSE 'overtaken'
                END
                WHEN
                    s.unchanged_within > 0
                    AND NOT s.r_dirty
                    AND s.digest = s.r_digests[cardinality(s.r_digests)]
                    AND s.at - s.r_at >= 0
                    AND s.at - s.r_at < s.unchanged_within
                    THEN 'unchanged'
                WHEN s.this_version AND s.r_attempt - s.used_spared >= s.attempts AND NOT s.redrive
                    THEN 'bury'
                ELSE 'again'
            END AS law
        FROM seen AS s
    ),
    decided AS MATERIALIZED (
        SELECT
            j.*,
            j.law IN ('anew', 'again') AS grants,
            -- A granted fact, and any key whose record expired, begins with an empty record.
            j.law = 'anew' OR j.law = 'again' AND j."order" IS NULL AS blank,
            -- At a tie the record describes only the version completed last.
            j."order" IS NULL OR j.digest = j.r_digests[cardinality(j.r_digests)] AS latest,
            NOT j.peek AND (
                j.law IN ('anew', 'again', 'bury', 'unchanged')
                OR j.law = 'own' AND j.alone AND NOT j.r_alone
                OR j.law IN ('own', 'held') AND j.cut_down < j.r_held_until
                OR j.law IN ('duplicate', 'stale')
                AND j.sliding
                AND j.r_expires < moment + j.remember
            ) AS writes,
            CASE j.law
                WHEN 'anew' THEN greatest(1, moment * 1000)
                WHEN 'again' THEN greatest(j.r_token + 1, moment * 1000)
                ELSE j.r_token
            END AS n_token,
            CASE
                WHEN j.law = 'anew' THEN 1
                WHEN j.law <> 'again' THEN j.r_attempt
                WHEN j.redrive OR j."order" IS NOT NULL AND j.this_version IS NOT TRUE THEN 1
                ELSE j.r_attempt + 1
            END AS n_attempt,
            CASE
                WHEN j.law = 'anew' THEN 0
                WHEN j.law <> 'again' THEN j.r_spared
                WHEN j.redrive OR j."order" IS NOT NULL AND j.this_version IS NOT TRUE THEN 0
                ELSE j.used_spared
            END AS n_spared,
            -- The crash of a run does not count against a new version.
            j.law = 'again' AND j.crashed AND (j."order" IS NULL OR j.this_version) AS n_suspect,
            coalesce(j.key = ANY (locked), false) AS ours
        FROM judged AS j
    ),
    written AS (
        INSERT INTO eventonce.records AS r (
            token, expires, held_until, nonce, "order", at, tried, attempt, spared, done, dirty,
            alone, key, by, trying, digests, dead, result
        )
        SELECT
            d.n_token,
            CASE
                WHEN d.law IN ('own', 'held') THEN d.r_expires
                WHEN d.law = 'anew' THEN moment + greatest(d.remember, unsettled)
                WHEN d.law IN ('again', 'bury')
                    THEN greatest(d.r_expires, moment + greatest(d.remember, unsettled))
                ELSE greatest(d.r_expires, moment + d.remember)
            END,
            CASE
                WHEN d.grants THEN moment + d.lease
                WHEN d.law = 'bury' THEN least(d.r_held_until, moment)
                WHEN d.law IN ('own', 'held') THEN d.cut_down
                ELSE d.r_held_until
            END,
            CASE WHEN d.grants THEN d.nonce WHEN d.law <> 'bury' THEN d.r_nonce END,
            CASE WHEN d.law = 'unchanged' THEN d."order" WHEN NOT d.blank THEN d.r_order END,
            CASE WHEN NOT d.blank THEN d.r_at END,
            CASE WHEN d.grants THEN d."order" ELSE d.r_tried END,
            d.n_attempt,
            d.n_spared,
            d.r_done AND NOT d.grants,
            CASE WHEN d.grants THEN d."order" IS NOT NULL ELSE d.r_dirty END,
            CASE WHEN d.grants THEN d.alone ELSE d.r_alone OR d.law = 'own' AND d.alone END,
            d.key,
            CASE
                WHEN d.law = 'unchanged' OR d.blank AND d."order" IS NULL THEN d.by
                WHEN NOT d.blank THEN d.r_by
            END,
            CASE WHEN NOT d.grants THEN d.r_trying WHEN d."order" IS NOT NULL THEN d.digest END,
            CASE WHEN d.law = 'unchanged' THEN ARRAY[d.digest] WHEN NOT d.blank THEN d.r_digests END,
            CASE
                WHEN d.law = 'bury'
                    THEN (d.r_dead || d.digest)[greatest(1, cardinality(d.r_dead) + 2 - kept_digests):]
                WHEN NOT d.grants THEN d.r_dead
                WHEN NOT d.blank AND d."order" = d.r_tried THEN array_remove(d.r_dead, d.digest)
            END,
            CASE WHEN NOT d.blank THEN d.r_result END
        FROM decided AS d
        WHERE d.writes AND d.ours
        ORDER BY d.key
        ON CONFLICT (key) DO UPDATE SET
            token = excluded.token,
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
    -- A verdict that could not be written is replaced by busy, without token and attempt: these
    -- would belong to another run.
    SELECT
        d.key, 'busy', NULL::bigint, NULL::integer,
        greatest(d.cut_down - moment, pause),
        NULL::boolean, NULL::bigint, NULL::bytea, NULL::boolean, NULL::integer
    FROM decided AS d
    WHERE d.writes AND NOT d.ours
    UNION ALL
    SELECT
        d.key,
        CASE
            WHEN d.law IN ('anew', 'again', 'own') THEN 'run'
            WHEN d.law IN ('held', 'waits') THEN 'busy'
            WHEN d.law IN ('bury', 'overtaken') THEN 'dead'
            ELSE d.law
        END,
        CASE WHEN (d.grants OR d.law = 'own') AND NOT d.peek THEN d.n_token END,
        CASE
            WHEN d.law = 'bury' OR (d.grants OR d.law = 'own') AND NOT d.peek THEN d.n_attempt
        END,
        CASE
            WHEN d.grants AND NOT d.peek THEN d.lease
            WHEN d.law = 'held' OR d.law = 'own' AND NOT d.peek THEN d.cut_down - moment
            WHEN d.law = 'waits' THEN d.r_held_until + newer_wait_leases * d.lease - moment
        END,
        CASE
            WHEN d.law IN ('duplicate', 'conflict') AND d.latest AND d.by <> '' AND d.r_by <> ''
                THEN d.by = d.r_by
        END,
        CASE
            WHEN d.law IN ('stale', 'duplicate', 'unchanged') THEN d.r_order
            WHEN d.law IN ('waits', 'overtaken') THEN d.r_tried
        END,
        CASE WHEN d.law = 'duplicate' AND d.latest THEN d.r_result END,
        d.n_suspect AND NOT d.peek,
        CASE WHEN (d.grants OR d.law = 'own') AND NOT d.peek THEN d.n_spared END
    FROM decided AS d
    WHERE NOT d.writes OR d.ours;
END
$$;
