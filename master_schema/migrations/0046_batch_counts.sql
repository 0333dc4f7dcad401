-- 0046 batch counts: one place counts the jobs of a batch, also those that have left the master.

-- Jobs of batches that had not ended when the tables of their range were dropped, by state. A batch whose jobs outlive the
-- retention ends all the same.
CREATE TABLE batch_dropped (
    lo               uuid NOT NULL,                 -- the range of the batch
    state            job_state NOT NULL,
    jobs             bigint NOT NULL,
    PRIMARY KEY (lo, state)
);

-- Cancelled batches whose jobs must not start: those that have not ended, and those that have ended before their jobs.
CREATE INDEX batch_cancelled ON batch (id) WHERE cancel_requested AND (look_at IS NOT NULL OR reason <> '');

-- Lowest id of the range that a job would be in.
CREATE FUNCTION batch_range_of(job uuid) RETURNS uuid LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT (left(job::text, 28) || '00000000')::uuid
$$;

-- First id above the ranges whose tables were dropped. (The stragglers of the attic lie below it and have tables of their own.)
CREATE FUNCTION dropped_below() RETURNS uuid LANGUAGE sql STABLE AS $$
    SELECT coalesce((SELECT hi FROM archive_manifest WHERE state = 'DROPPED' AND NOT starts_with(name, 'job_attic_')
                     ORDER BY hi DESC LIMIT 1), '00000000-0000-0000-0000-000000000000')
$$;

-- What has become of the jobs of a batch, in one snapshot. A job that no table of jobs accepts (it is in quarantine) counts as
-- failed. What is quarantined below a range that was dropped is a late copy of a job that was counted there.
CREATE FUNCTION batch_count(wanted uuid) RETURNS TABLE (
    succeeded bigint, failed bigint, cancelled bigint, expired bigint, held bigint, in_flight bigint
) LANGUAGE sql STABLE AS $$
    WITH ranges AS MATERIALIZED (
        SELECT r.lo, batch_range_end(r.lo) AS hi FROM batch_range r WHERE r.batch = wanted
    ), states AS MATERIALIZED (
        SELECT j.state, count(*) AS jobs
        FROM ranges r CROSS JOIN LATERAL (SELECT k.state FROM job_kept k WHERE k.id > r.lo AND k.id <= r.hi) j
        GROUP BY j.state
        UNION ALL
        SELECT d.state, d.jobs FROM ranges r JOIN batch_dropped d ON d.lo = r.lo
        UNION ALL
        SELECT 'FAILED'::job_state, count(DISTINCT q.job_id)
        FROM ranges r JOIN quarantine q ON q.job_id > r.lo AND q.job_id <= r.hi
        WHERE NOT EXISTS (SELECT FROM job_kept j WHERE j.id = q.job_id) AND q.job_id >= dropped_below()
    )
    SELECT coalesce(sum(jobs) FILTER (WHERE state = 'SUCCEEDED'), 0)::bigint,
           coalesce(sum(jobs) FILTER (WHERE state = 'FAILED'), 0)::bigint,
           coalesce(sum(jobs) FILTER (WHERE state = 'CANCELLED'), 0)::bigint,
           coalesce(sum(jobs) FILTER (WHERE state = 'EXPIRED'), 0)::bigint,
           coalesce(sum(jobs) FILTER (WHERE state IN ('HELD', 'WAITING')), 0)::bigint,
           coalesce(sum(jobs) FILTER (WHERE state IN ('ASSIGNED', 'PROCESSING')), 0)::bigint
    FROM states
$$;

-- Before the tables of a range are dropped: the jobs of batches that have not ended are counted for good. A conclusion that
-- reads the tables holds a lock on them, so the drop waits for it; one that comes later reads what is written here.
CREATE FUNCTION count_dropped(jobs_table text, lowest uuid, highest uuid, attic boolean) RETURNS void
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    EXECUTE format($count$
        INSERT INTO batch_dropped AS d (lo, state, jobs)
        SELECT c.lo, c.state, sum(c.jobs) FROM (
            SELECT r.lo, j.state, count(*) AS jobs
            FROM batch_range r JOIN batch b ON b.id = r.batch AND b.look_at IS NOT NULL
            CROSS JOIN LATERAL (SELECT k.state FROM %I k WHERE k.id > r.lo AND k.id <= batch_range_end(r.lo)) j
            WHERE r.lo < $2 AND batch_range_end(r.lo) >= $1
            GROUP BY r.lo, j.state
            UNION ALL
            SELECT r.lo, 'FAILED', count(DISTINCT q.job_id)
            FROM batch_range r JOIN batch b ON b.id = r.batch AND b.look_at IS NOT NULL
            JOIN quarantine q ON q.job_id > r.lo AND q.job_id <= batch_range_end(r.lo)
            WHERE NOT $3 AND q.job_id >= greatest($1, dropped_below()) AND q.job_id < $2
              AND NOT EXISTS (SELECT FROM job_kept k WHERE k.id = q.job_id)
            GROUP BY r.lo
        ) c
        WHERE c.jobs > 0
        GROUP BY c.lo, c.state ORDER BY c.lo, c.state
        ON CONFLICT (lo, state) DO UPDATE SET jobs = d.jobs + EXCLUDED.jobs $count$, jobs_table)
    USING lowest, highest, attic;
END
$$;

-- As in 0013, with the count.
CREATE OR REPLACE FUNCTION drop_detached(wanted text, discard boolean) RETURNS boolean
LANGUAGE plpgsql SET search_path FROM CURRENT SET lock_timeout = '100ms' AS $$
DECLARE
    line         archive_manifest;
    found bigint;
    lines bigint;
    last_job     bigint;
    last_attempt bigint;
BEGIN
    SELECT * INTO line FROM archive_manifest WHERE name = wanted FOR UPDATE;
    IF line.state = 'DROPPED' THEN
        RETURN false;
    END IF;
    IF line IS NULL OR NOT (line.state = 'PUBLISHED' OR discard AND line.state = 'DETACHED') THEN
        RAISE EXCEPTION '% is %, and only what is PUBLISHED is dropped', wanted, coalesce(line.state::text, 'unknown')
            USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    IF to_regclass(quote_ident(line.name)) IS DISTINCT FROM line.job_oid::regclass
       OR to_regclass(quote_ident(line.attempts)) IS DISTINCT FROM line.attempt_oid::regclass THEN
        RAISE EXCEPTION 'the tables % and % are not those that were detached', line.name, line.attempts
            USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    EXECUTE format('LOCK TABLE %I, %I IN SHARE MODE', line.name, line.attempts);
    IF line.state = 'PUBLISHED' THEN
        EXECUTE format('SELECT count(*) FROM %I', line.name) INTO found;
        EXECUTE format('SELECT count(*) FROM %I', line.attempts) INTO lines;
        IF found <> line.rows OR lines <> line.attempt_rows THEN
            RAISE EXCEPTION '% holds % jobs and % attempts, but % and % were verified',
                wanted, found, lines, line.rows, line.attempt_rows USING ERRCODE = 'object_not_in_prerequisite_state';
        END IF;
    END IF;
    last_job := last_recorded(line.name);
    last_attempt := last_recorded(line.attempts);
    PERFORM count_dropped(line.name, line.lo, line.hi, starts_with(line.name, 'job_attic_'));
    EXECUTE format('DROP TABLE %I, %I', line.name, line.attempts);
    UPDATE archive_manifest
    SET state = 'DROPPED', dropped_at = clock_timestamp(), discarded = discard AND line.verified_at IS NULL,
        jobs_recorded = last_job, attempts_recorded = last_attempt,
        dropped_xid = pg_current_xact_id()::text::bigint
    WHERE name = wanted;
    RETURN true;
END
$$;
