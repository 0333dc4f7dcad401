-- 0005 archive: ranges leave the master in steps that survive a crash between any two of them.
-- SEALED (chosen) -> DETACHED (out of job, still in the views) -> EXPORTED (files are written) -> VERIFIED (count and
-- checksum agree) -> PUBLISHED (readers may use the files) -> DROPPED. The row in archive_manifest is the commit point.

CREATE TYPE archive_state AS ENUM ('SEALED', 'DETACHED', 'EXPORTED', 'VERIFIED', 'PUBLISHED', 'DROPPED');

CREATE TABLE archive_manifest (
    name             text PRIMARY KEY,              -- of the table that was a partition of job; never used again
    attempts         text NOT NULL UNIQUE,          -- of the table beside it, with the attempts of the same jobs
    state            archive_state NOT NULL DEFAULT 'SEALED',
    lo               uuid NOT NULL,                 -- ids from here ...
    hi               uuid NOT NULL,                 -- ... to below here
    job_oid          oid,                           -- of the two tables, so that never another of the same name is dropped
    attempt_oid      oid,
    moved            bigint,                        -- unfinished jobs that went to the attic instead
    discarded        boolean NOT NULL DEFAULT false, -- dropped by an operator's word, without a copy
    -- What the tables say, and what the files say:
    rows             bigint,
    checksum         numeric(38),
    attempt_rows     bigint,
    attempt_checksum numeric(38),
    run_id           text,                          -- of the export that is meant; files of other runs are nobody's
    lake             text,                          -- where it lies
    format           integer,                       -- version of the layout and of the columns
    files            jsonb,                         -- path (below the lake), dataset, rows, bytes, sha256 of each
    ended_from       timestamptz,                   -- first and last end of its jobs
    ended_to         timestamptz,
    sealed_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    detached_at      timestamptz,
    exported_at      timestamptz,
    verified_at      timestamptz,
    published_at     timestamptz,
    dropped_at       timestamptz,
    -- Nothing is dropped unless it was verified, or an operator has said that no copy is wanted.
    CONSTRAINT archive_dropped_is_verified
        CHECK (state <> 'DROPPED' OR discarded OR (verified_at IS NOT NULL AND published_at IS NOT NULL))
);

-- Detached ranges hang below these two until they are dropped, so that the views show them. Inheritance and not
-- partitioning: attaching to a partitioned table would read every row while job is locked, INHERIT reads none.
CREATE TABLE job_detached (LIKE job INCLUDING ALL);
CREATE TABLE attempt_detached (LIKE attempt INCLUDING ALL);

CREATE VIEW job_kept AS SELECT * FROM job UNION ALL SELECT * FROM job_detached;
CREATE VIEW attempt_kept AS SELECT * FROM attempt UNION ALL SELECT * FROM attempt_detached;

-- Same name, same answer, one thing more: the manifest's row and the views change in the same transaction, so no reader
-- sees a job twice or not at all.
CREATE OR REPLACE FUNCTION retire_range(below_safe timestamptz, OUT detached text, OUT moved bigint)
LANGUAGE plpgsql SET search_path FROM CURRENT SET timezone = 'UTC' SET lock_timeout = '500ms' AS $$
DECLARE
    oldest   record;
    attempts text;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('jobmaster partitions'), hashtext(current_schema()));
    SELECT * INTO oldest FROM partitions_of('job') WHERE lo IS NOT NULL ORDER BY lo LIMIT 1;
    IF oldest IS NULL OR oldest.hi > uuid_floor(below_safe) OR oldest.hi > uuid_floor(clock_timestamp()) THEN
        RETURN;
    END IF;
    SELECT name INTO STRICT attempts FROM partitions_of('attempt') WHERE lo = oldest.lo;
    LOCK TABLE job, attempt IN ACCESS EXCLUSIVE MODE;
    EXECUTE format('ALTER TABLE job DETACH PARTITION %I', oldest.name);
    EXECUTE format('ALTER TABLE attempt DETACH PARTITION %I', attempts);
    ALTER TABLE job DETACH PARTITION job_attic;
    ALTER TABLE attempt DETACH PARTITION attempt_attic;
    PERFORM set_config('jobmaster.attic_mover', 'on', true);
    EXECUTE format($move$
        WITH gone AS (DELETE FROM %I WHERE state IN ('HELD', 'ASSIGNED', 'PROCESSING', 'WAITING') RETURNING *)
        INSERT INTO job_attic SELECT * FROM gone $move$, oldest.name);
    GET DIAGNOSTICS moved = ROW_COUNT;
    EXECUTE format($move$
        WITH gone AS (DELETE FROM %I a USING job_attic j WHERE j.id = a.job_id RETURNING a.*)
        INSERT INTO attempt_attic SELECT * FROM gone $move$, attempts);
    PERFORM set_config('jobmaster.attic_mover', 'off', true);
    -- Attaching scans the attic, which holds stragglers only.
    EXECUTE format('ALTER TABLE job ATTACH PARTITION job_attic FOR VALUES FROM (MINVALUE) TO (%L)', oldest.hi);
    EXECUTE format('ALTER TABLE attempt ATTACH PARTITION attempt_attic FOR VALUES FROM (MINVALUE) TO (%L)', oldest.hi);
    UPDATE watermark SET floor = oldest.hi, moved_at = clock_timestamp();
    PERFORM keep_detached(oldest.name, attempts, oldest.lo, oldest.hi, moved);
    detached := oldest.name;
END
$$;

-- Two tables that have left job and attempt stay in the views, and their row in the manifest is DETACHED.
CREATE FUNCTION keep_detached(jobs text, attempt_lines text, lo uuid, hi uuid, moved bigint) RETURNS void
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    EXECUTE format('ALTER TABLE %I INHERIT job_detached', jobs);
    EXECUTE format('ALTER TABLE %I INHERIT attempt_detached', attempt_lines);
    INSERT INTO archive_manifest AS m (name, attempts, state, lo, hi, job_oid, attempt_oid, moved, detached_at)
    VALUES (jobs, attempt_lines, 'DETACHED', lo, hi, jobs::regclass, attempt_lines::regclass, moved, clock_timestamp())
    ON CONFLICT (name) DO UPDATE
    SET state = EXCLUDED.state, job_oid = EXCLUDED.job_oid, attempt_oid = EXCLUDED.attempt_oid, moved = EXCLUDED.moved,
        detached_at = EXCLUDED.detached_at
    WHERE m.state = 'SEALED';
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the manifest already knows a detached %', jobs;
    END IF;
END
$$;

-- Stragglers that have ended leave the attic as a range of their own. The lock keeps writers out of the attic meanwhile:
-- one that had passed the guard of the attic and then waited for a row that is being moved would put it back.
CREATE FUNCTION sweep_attic(ended_before timestamptz, OUT detached text, OUT swept bigint)
LANGUAGE plpgsql SET search_path FROM CURRENT SET timezone = 'UTC' SET lock_timeout = '500ms' AS $$
DECLARE
    attempts text;
    lowest   uuid;
    highest  uuid;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('jobmaster partitions'), hashtext(current_schema()));
    LOCK TABLE job_attic, attempt_attic IN SHARE ROW EXCLUSIVE MODE;
    SELECT count(*), (array_agg(id ORDER BY id))[1], (array_agg(id ORDER BY id DESC))[1] INTO swept, lowest, highest
    FROM job_attic
    WHERE state IN ('SUCCEEDED', 'FAILED', 'CANCELLED', 'EXPIRED') AND changed_at < ended_before;
    IF swept = 0 THEN
        RETURN;
    END IF;
    detached := 'job_attic_' || to_char(clock_timestamp(), 'YYYYMMDD_HH24MISS_US');
    attempts := replace(detached, 'job_', 'attempt_');
    EXECUTE format('CREATE TABLE %I (LIKE job INCLUDING ALL)', detached);
    EXECUTE format('CREATE TABLE %I (LIKE attempt INCLUDING ALL)', attempts);
    EXECUTE format($move$
        WITH gone AS (
            DELETE FROM job_attic
            WHERE state IN ('SUCCEEDED', 'FAILED', 'CANCELLED', 'EXPIRED') AND changed_at < %L RETURNING *
        )
        INSERT INTO %I SELECT * FROM gone $move$, ended_before, detached);
    EXECUTE format($move$
        WITH gone AS (DELETE FROM attempt_attic a USING %I j WHERE j.id = a.job_id RETURNING a.*)
        INSERT INTO %I SELECT * FROM gone $move$, detached, attempts);
    PERFORM keep_detached(detached, attempts, lowest, uuid_floor(uuid_moment(highest) + interval '1 millisecond'), 0);
END
$$;

-- What a detached pair of tables holds. The checksum of a row is the first 52 bits of the md5 of all its columns as text,
-- and that of a table is their sum: the same figure in any engine and any order.
CREATE FUNCTION measure_detached(
    jobs text, attempt_lines text, OUT rows bigint, OUT checksum numeric, OUT attempt_rows bigint,
    OUT attempt_checksum numeric, OUT ended_from timestamptz, OUT ended_to timestamptz
) LANGUAGE plpgsql STABLE SET search_path FROM CURRENT AS $$
BEGIN
    EXECUTE format($sum$
        SELECT count(*), coalesce(sum(('x' || left(md5(convert_to(concat_ws('|',
                   id, state, priority, lane, handler, token, coalesce(bucket_id::text, '~'),
                   coalesce(bucket_epoch::text, '~'), attempt, rescues, CASE WHEN cancel_requested THEN 1 ELSE 0 END,
                   coalesce(to_us(due_at)::text, '~'), coalesce(to_us(expires_at)::text, '~'), to_us(changed_at),
                   coalesce(waited_us::text, '~'), coalesce(ran_us::text, '~'), convert_from(args, 'UTF8'),
                   convert_from(headers, 'UTF8'), coalesce(convert_from(result, 'UTF8'), '~'),
                   coalesce(convert_from(error, 'UTF8'), '~')), 'UTF8')), 13))::bit(52)::bigint), 0),
               min(changed_at), max(changed_at)
        FROM %I $sum$, jobs) INTO rows, checksum, ended_from, ended_to;
    EXECUTE format($sum$
        SELECT count(*), coalesce(sum(('x' || left(md5(convert_to(concat_ws('|',
                   job_id, token, bucket_id, bucket_epoch, outcome, to_us(at), coalesce(ran_us::text, '~'),
                   coalesce(convert_from(error, 'UTF8'), '~'), coalesce(to_us(refused_at)::text, '~'), refused_count),
                   'UTF8')), 13))::bit(52)::bigint), 0)
        FROM %I $sum$, attempt_lines) INTO attempt_rows, attempt_checksum;
END
$$;

-- The last step: only what is PUBLISHED and still counts what was verified, or what an operator discards.
CREATE FUNCTION drop_detached(wanted text, discard boolean) RETURNS boolean
LANGUAGE plpgsql SET search_path FROM CURRENT SET lock_timeout = '500ms' AS $$
DECLARE
    line  archive_manifest;
    found bigint;
    lines bigint;
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
    EXECUTE format('LOCK TABLE %I, %I IN ACCESS EXCLUSIVE MODE', line.name, line.attempts);
    IF line.state = 'PUBLISHED' THEN
        EXECUTE format('SELECT count(*) FROM %I', line.name) INTO found;
        EXECUTE format('SELECT count(*) FROM %I', line.attempts) INTO lines;
        IF found <> line.rows OR lines <> line.attempt_rows THEN
            RAISE EXCEPTION '% holds % jobs and % attempts, but % and % were verified',
                wanted, found, lines, line.rows, line.attempt_rows USING ERRCODE = 'object_not_in_prerequisite_state';
        END IF;
    END IF;
    EXECUTE format('DROP TABLE %I, %I', line.name, line.attempts);
    UPDATE archive_manifest
    SET state = 'DROPPED', dropped_at = clock_timestamp(), discarded = discard AND line.verified_at IS NULL
    WHERE name = wanted;
    RETURN true;
END
$$;

-- The views of 0004 with what is detached. Who acted for a bucket under an epoch is part of the history, too.
CREATE OR REPLACE VIEW jobs AS
SELECT id,
       state::text AS state,
       priority_label(priority) AS priority,
       priority AS priority_level,
       lane,
       handler,
       uuid_moment(id) AS created_at,
       due_at,
       CASE WHEN state IN ('SUCCEEDED', 'FAILED') THEN changed_at - ran_us * interval '1 microsecond' END AS started_at,
       CASE WHEN state IN ('SUCCEEDED', 'FAILED', 'CANCELLED', 'EXPIRED') THEN changed_at END AS ended_at,
       changed_at,
       waited_us,
       ran_us,
       attempt,
       rescues,
       token,
       bucket_id,
       bucket_epoch,
       cancel_requested,
       convert_from(args, 'UTF8')::json AS args,
       CASE WHEN length(headers) > 0 THEN convert_from(headers, 'UTF8')::json ELSE '{}'::json END AS headers,
       convert_from(result, 'UTF8')::json AS result,
       convert_from(error, 'UTF8')::json AS error,
       expires_at
FROM job_kept;

CREATE OR REPLACE VIEW ledger AS
SELECT job_id,
       token,
       bucket_id,
       bucket_epoch,
       false AS concluding,
       outcome,
       at,
       ran_us,
       convert_from(error, 'UTF8')::json AS error,
       refused_at,
       refused_count
FROM attempt_kept
UNION ALL
SELECT id,
       token,
       bucket_id,
       bucket_epoch,
       true,
       lower(state::text),
       changed_at,
       ran_us,
       convert_from(error, 'UTF8')::json,
       NULL,
       0
FROM job_kept
WHERE state IN ('SUCCEEDED', 'FAILED', 'CANCELLED', 'EXPIRED');

CREATE VIEW attempts AS
SELECT job_id,
       token,
       bucket_id,
       bucket_epoch,
       outcome,
       at,
       ran_us,
       convert_from(error, 'UTF8')::json AS error,
       refused_at,
       refused_count
FROM attempt_kept;

CREATE VIEW bucket_owners AS
SELECT DISTINCT ON (e.bucket_id, e.epoch)
       e.bucket_id,
       e.epoch AS bucket_epoch,
       e.actor AS agent_id,
       a.name AS agent,
       a.host,
       a.store
FROM bucket_event e
LEFT JOIN agent a ON a.id = e.actor
WHERE e.to_state IN ('ACTIVE', 'DRAINING') AND e.actor IS NOT NULL
ORDER BY e.bucket_id, e.epoch, e.seq;
