-- One step of a sweep: checks `step` records after the last one checked, and deletes expired ones.
-- The transaction takes a millisecond; a row that another transaction has locked is skipped.

CREATE FUNCTION eventonce.sweep_1(step integer, instant bigint)
RETURNS TABLE (looked bigint, dropped bigint)
LANGUAGE plpgsql VOLATILE
SET lock_timeout = '500ms'
SET plan_cache_mode = force_generic_plan -- a new plan for each call costs more than the call
SET enable_seqscan = off -- a plan made for a small table is kept when the table is large
AS $$
#variable_conflict use_column
DECLARE
    start bytea;
    last bytea;
    moment bigint;
    expired bytea[];
BEGIN
    SELECT s.swept INTO start FROM eventonce.sweeps AS s WHERE s.one FOR UPDATE;
    moment := eventonce.clock_1(instant);

    SELECT
        count(*),
        (array_agg(l.key ORDER BY l.key DESC))[1],
        array_agg(l.key) FILTER (
            WHERE moment >= l.expires AND moment >= coalesce(l.held_until, 0)
        )
    INTO looked, last, expired
    FROM (
        SELECT r.key, r.expires, r.held_until FROM eventonce.records AS r
        WHERE r.key > start ORDER BY r.key LIMIT step
    ) AS l;

    WITH gone AS (
        DELETE FROM eventonce.records AS r WHERE r.key = ANY (ARRAY(
            SELECT d.key FROM eventonce.records AS d
            WHERE
                d.key = ANY (expired)
                AND moment >= d.expires
                AND moment >= coalesce(d.held_until, 0)
            FOR UPDATE SKIP LOCKED
        ))
        RETURNING 1
    )
    SELECT count(*) INTO dropped FROM gone;

    -- After the last record, the next step begins at the first.
    UPDATE eventonce.sweeps SET swept = CASE WHEN looked < step THEN '' ELSE last END WHERE one;
    RETURN NEXT;
END
$$;
