-- 0003 partitions: ranges of job and attempt are made ahead of time and retired whole.
-- A partition is built stand-alone and then attached: creating it in place takes an exclusive lock on job, attaching does
-- not block reads or writes. Below the floor lies one partition per table, the attic, for unfinished stragglers.

-- Ids below the floor: only the mover (see retire_range) brings rows in. Whatever else comes is a late copy of a job that
-- is finished and gone; it vanishes here, off the hot path, and the writer sees that its row was not written. An id that
-- lies in the attic passes, so that a straggler can still be finished by the upsert.
CREATE FUNCTION job_attic_guard() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    IF current_setting('jobmaster.attic_mover', true) = 'on' OR EXISTS (SELECT FROM job_attic WHERE id = NEW.id) THEN
        RETURN NEW;
    END IF;
    RETURN NULL;
END
$$;

CREATE FUNCTION attempt_attic_guard() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    IF current_setting('jobmaster.attic_mover', true) = 'on' OR EXISTS (SELECT FROM job_attic WHERE id = NEW.job_id) THEN
        RETURN NEW;
    END IF;
    RETURN NULL;
END
$$;

-- One range of one partitioned table. The name says its first day and its span: job_day_20261120.
CREATE FUNCTION make_partition(parent text, key text, span text, from_moment timestamptz, to_moment timestamptz)
RETURNS text LANGUAGE plpgsql SET search_path FROM CURRENT SET timezone = 'UTC' AS $$
DECLARE
    child text := format('%s_%s_%s', parent, span, to_char(from_moment, 'YYYYMMDD'));
    lo uuid := uuid_floor(from_moment);
    hi uuid := uuid_floor(to_moment);
BEGIN
    EXECUTE format('CREATE TABLE %I (LIKE %I INCLUDING ALL)', child, parent);
    -- The same bound as a CHECK saves ATTACH its scan; afterwards it would only cost every row of a COPY.
    EXECUTE format('ALTER TABLE %I ADD CONSTRAINT in_range CHECK (%I >= %L AND %I < %L)', child, key, lo, key, hi);
    EXECUTE format('ALTER TABLE %I ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)', parent, child, lo, hi);
    EXECUTE format('ALTER TABLE %I DROP CONSTRAINT in_range', child);
    -- Onboarding leaves dead entries at the near end of job_due; a fifth of a large history would be far too late.
    EXECUTE format('ALTER TABLE %I SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000)', child);
    RETURN child;
END
$$;

-- What is attached, in order; the attic first (its lower bound is NULL).
CREATE FUNCTION partitions_of(parent text) RETURNS TABLE (name text, lo uuid, hi uuid)
LANGUAGE sql STABLE SET search_path FROM CURRENT AS $$
    SELECT c.relname::text,
           substring(pg_get_expr(c.relpartbound, c.oid) FROM 'FROM \(''([0-9a-f-]+)''\)')::uuid,
           substring(pg_get_expr(c.relpartbound, c.oid) FROM 'TO \(''([0-9a-f-]+)''\)')::uuid
    FROM pg_inherits i
    JOIN pg_class c ON c.oid = i.inhrelid
    WHERE i.inhparent = parent::regclass
    ORDER BY 3
$$;

-- Partitions from the last one that exists (the floor at first) to ahead_days from now; returns the names of the new ones.
-- wanted NULL = as last time. Repeating it does nothing; two at once wait for each other.
-- At most 64 stay attached, because every statement pays for each (with 400, one claim took 806 locks). A cluster whose
-- history is never retired must not stop taking jobs, so the span grows before the limit is near: weeks from 32 on, months
-- from 48 on, which is more than a year of notice.
CREATE FUNCTION ensure_partitions(wanted text, ahead_days integer) RETURNS SETOF text
LANGUAGE plpgsql SET search_path FROM CURRENT SET timezone = 'UTC' AS $$
DECLARE
    attached integer;
    next_lo  timestamptz;
    next_hi  timestamptz;
    goal     timestamptz := clock_timestamp() + ahead_days * interval '1 day';
    step     text;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('jobmaster partitions'), hashtext(current_schema()));
    SELECT coalesce(wanted, span) INTO step FROM watermark;
    IF step IS NULL OR step NOT IN ('day', 'week', 'month') THEN
        RAISE EXCEPTION 'a partition spans a day, a week or a month, not %', coalesce(step, 'nothing')
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    UPDATE watermark SET span = step WHERE span <> step;
    SELECT count(*), uuid_moment((array_agg(hi ORDER BY hi DESC))[1]) INTO attached, next_lo FROM partitions_of('job');
    WHILE next_lo <= goal LOOP
        IF attached >= 64 THEN
            RAISE EXCEPTION 'job has 64 partitions attached and needs one from % on', next_lo
                USING ERRCODE = 'program_limit_exceeded',
                      HINT = 'Retire the oldest ranges, or choose a longer partitions.span.';
        END IF;
        IF attached >= 48 THEN
            step := 'month';
        ELSIF attached >= 32 AND step = 'day' THEN
            step := 'week';
        END IF;
        next_hi := date_trunc(step, next_lo) + ('1 ' || step)::interval;
        PERFORM make_partition('attempt', 'job_id', step, next_lo, next_hi);
        RETURN NEXT make_partition('job', 'id', step, next_lo, next_hi);
        attached := attached + 1;
        next_lo := next_hi;
    END LOOP;
END
$$;

-- The oldest range leaves: detached (export and drop come after), its unfinished jobs and their attempts move to the
-- attic, the floor moves up. One transaction of milliseconds that gives up fast when job is busy. Returns the name of
-- the detached partition and how many jobs moved. below_safe: no agent store may still hold an id below it alone.
CREATE FUNCTION retire_range(below_safe timestamptz, OUT detached text, OUT moved bigint)
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
    detached := oldest.name;
END
$$;

-- The first ranges: from yesterday (ids may be an hour old by a producer's clock) to a week ahead.
INSERT INTO watermark (floor) SELECT uuid_floor(date_trunc('day', clock_timestamp(), 'UTC') - interval '1 day');

CREATE TABLE job_attic (LIKE job INCLUDING ALL);
CREATE TABLE attempt_attic (LIKE attempt INCLUDING ALL);
CREATE TRIGGER job_attic_guard BEFORE INSERT ON job_attic FOR EACH ROW EXECUTE FUNCTION job_attic_guard();
CREATE TRIGGER attempt_attic_guard BEFORE INSERT ON attempt_attic FOR EACH ROW EXECUTE FUNCTION attempt_attic_guard();
DO $$
DECLARE
    bottom uuid := (SELECT floor FROM watermark);
BEGIN
    EXECUTE format('ALTER TABLE job ATTACH PARTITION job_attic FOR VALUES FROM (MINVALUE) TO (%L)', bottom);
    EXECUTE format('ALTER TABLE attempt ATTACH PARTITION attempt_attic FOR VALUES FROM (MINVALUE) TO (%L)', bottom);
END
$$;

SELECT ensure_partitions('day', 7);
