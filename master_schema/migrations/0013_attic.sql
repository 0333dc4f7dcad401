-- 0013 attic: a range leaves job without holding up those who use it, however many of its jobs are unfinished.
-- Before the lock the unfinished rows are copied, some pages at a time, into a new attic beside the old one, while triggers
-- on the sources note every row that changes. Under the lock only the noted rows are copied again, and the new attic takes
-- the place of the old one and of the range. What is left over is removed after the lock, again some rows at a time.

-- Of a row that was moved after it had been recorded: the transaction that recorded it. Readers of streams go by it instead
-- of xmin. NULL on all other rows, and on every row that writers make.
ALTER TABLE job ADD COLUMN recorded_xid bigint;
ALTER TABLE job_detached ADD COLUMN recorded_xid bigint;
ALTER TABLE attempt ADD COLUMN recorded_xid bigint;
ALTER TABLE attempt_detached ADD COLUMN recorded_xid bigint;

-- Of a range that was dropped: the last transactions that recorded a row of it, and the one that dropped it.
ALTER TABLE archive_manifest
    ADD COLUMN jobs_recorded bigint,
    ADD COLUMN attempts_recorded bigint,
    ADD COLUMN dropped_xid bigint;

-- The one range that is on its way out of job, and how far its rows have come. It survives a crash at any point.
CREATE TABLE retirement (
    one_row          boolean PRIMARY KEY DEFAULT true CHECK (one_row),
    name             text NOT NULL,
    attempts         text NOT NULL,
    lo               uuid NOT NULL,
    hi               uuid NOT NULL,
    attic_page       bigint NOT NULL DEFAULT 0,     -- of the old attic: copied so far ...
    attic_pages      bigint NOT NULL DEFAULT 0,     -- ... and in all; a page that was added later is of rows that were noted
    attic_file       oid,                           -- in which these pages are: VACUUM FULL writes another one
    range_page       bigint NOT NULL DEFAULT 0,     -- the same of the range
    range_pages      bigint NOT NULL DEFAULT 0,
    range_file       oid,
    left_job         boolean NOT NULL DEFAULT false, -- the range is detached; its copies of unfinished rows are removed
    cleaned          uuid,                          -- up to this id
    moved            bigint NOT NULL DEFAULT 0
);

-- Ids of rows that changed since the copying began. No key: a key would make writers wait for the copier, and an entry that
-- is being taken could swallow a newer one.
CREATE TABLE job_touched (id uuid NOT NULL);

CREATE FUNCTION note_touched() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    INSERT INTO job_touched (id) VALUES (coalesce(NEW.id, OLD.id));
    RETURN NULL;
END
$$;

-- The guards of 0003. The row is locked, so that whoever takes finished rows out of the attic does not take it meanwhile: a
-- writer that had passed the guard and then waited for a row that is being moved would put it back. The definer's rights:
-- a new attic is a new table, on which nobody has granted anything.
CREATE OR REPLACE FUNCTION job_attic_guard() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    IF current_setting('jobmaster.attic_mover', true) = 'on' THEN
        RETURN NEW;
    END IF;
    PERFORM FROM job_attic WHERE id = NEW.id FOR KEY SHARE;
    IF FOUND THEN
        RETURN NEW;
    END IF;
    RETURN NULL;
END
$$;

CREATE OR REPLACE FUNCTION attempt_attic_guard() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    IF current_setting('jobmaster.attic_mover', true) = 'on' THEN
        RETURN NEW;
    END IF;
    PERFORM FROM job_attic WHERE id = NEW.job_id FOR KEY SHARE;
    IF FOUND THEN
        RETURN NEW;
    END IF;
    RETURN NULL;
END
$$;

-- Columns of a table; with a condition as a list to read when rows are moved: those for which it holds keep the transaction
-- that recorded them, in all its bits. The sum in it lies ahead of every transaction that the statement can see.
CREATE FUNCTION row_columns(parent regclass, recorded text DEFAULT NULL) RETURNS text
LANGUAGE sql STABLE SET search_path FROM CURRENT AS $$
    SELECT string_agg(CASE WHEN recorded IS NOT NULL AND attname = 'recorded_xid' THEN format(
               'CASE WHEN %s THEN coalesce(recorded_xid, %s - ((%2$s - xmin::text::bigint) & 4294967295)) END AS recorded_xid',
               recorded, pg_snapshot_xmax(pg_current_snapshot())::text::bigint + 1073741824)
           ELSE quote_ident(attname) END, ', ' ORDER BY attnum)
    FROM pg_attribute
    WHERE attrelid = parent AND attnum > 0 AND NOT attisdropped
$$;

-- The new attic, empty. No guard yet: only the copier knows it.
CREATE FUNCTION make_next_attic(hi uuid) RETURNS void LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    DROP TABLE IF EXISTS job_attic_next;
    CREATE TABLE job_attic_next (LIKE job INCLUDING ALL);
    -- The bound of the partition as a CHECK saves ATTACH its scan.
    EXECUTE format('ALTER TABLE job_attic_next ADD CONSTRAINT in_range CHECK (id < %L)', hi);
    ALTER TABLE job_attic_next SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000);
END
$$;

-- Copying begins, or begins anew. Every change is noted from here on; what was written before lies in the pages counted here.
CREATE FUNCTION count_pages() RETURNS void LANGUAGE sql SET search_path FROM CURRENT AS $$
    UPDATE retirement
    SET attic_page = 0,
        attic_pages = pg_relation_size(to_regclass('job_attic')) / current_setting('block_size')::bigint,
        attic_file = pg_relation_filenode(to_regclass('job_attic')),
        range_page = 0,
        range_pages = pg_relation_size(quote_ident(name)::regclass) / current_setting('block_size')::bigint,
        range_file = pg_relation_filenode(quote_ident(name)::regclass)
$$;

-- Whether the pages that were counted are still those of the tables, and the copies have all columns and indexes of job.
CREATE FUNCTION still_the_same() RETURNS boolean LANGUAGE sql STABLE SET search_path FROM CURRENT AS $$
    SELECT attic_file = pg_relation_filenode(to_regclass('job_attic'))
           AND range_file = pg_relation_filenode(quote_ident(name)::regclass)
           AND row_columns(to_regclass('job_attic_next')) = row_columns('job')
           AND (SELECT count(*) FROM pg_index WHERE indrelid = to_regclass('job_attic_next'))
               = (SELECT count(*) FROM pg_index WHERE indrelid = 'job'::regclass)
    FROM retirement
$$;

-- The oldest range begins to leave, if all of it lies below a moment; one that has begun goes on. The name of the range, NULL
-- when there is none. Locks writers out of the range and the attic for the making of two triggers. below_safe: no agent store
-- may still hold an id below it alone.
CREATE FUNCTION retire_begin(below_safe timestamptz) RETURNS text
LANGUAGE plpgsql SET search_path FROM CURRENT SET timezone = 'UTC' SET lock_timeout = '100ms' AS $$
DECLARE
    begun    retirement;
    oldest   record;
    lines    text;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('jobmaster partitions'), hashtext(current_schema()));
    SELECT * INTO begun FROM retirement;
    IF FOUND THEN
        IF NOT begun.left_job AND NOT still_the_same() THEN
            PERFORM make_next_attic(begun.hi);
            PERFORM count_pages();
        END IF;
        RETURN begun.name;
    END IF;
    SELECT * INTO oldest FROM partitions_of('job') WHERE lo IS NOT NULL ORDER BY lo LIMIT 1;
    IF oldest IS NULL OR oldest.hi > uuid_floor(below_safe) OR oldest.hi > uuid_floor(clock_timestamp()) THEN
        RETURN NULL;
    END IF;
    SELECT name INTO STRICT lines FROM partitions_of('attempt') WHERE lo = oldest.lo;
    INSERT INTO retirement (name, attempts, lo, hi) VALUES (oldest.name, lines, oldest.lo, oldest.hi);
    PERFORM make_next_attic(oldest.hi);
    CREATE TRIGGER note_touched AFTER INSERT OR UPDATE OR DELETE ON job_attic
        FOR EACH ROW EXECUTE FUNCTION note_touched();
    EXECUTE format($trigger$
        CREATE TRIGGER note_touched AFTER INSERT OR UPDATE OR DELETE ON %I
        FOR EACH ROW EXECUTE FUNCTION note_touched() $trigger$, oldest.name);
    PERFORM count_pages();
    RETURN oldest.name;
END
$$;

-- The attempts of the attic stay where they are, under a higher bound: proved beforehand, so that nothing is read under the
-- lock. NOT VALID takes the lock for an instant; retire_prove reads without one that a writer feels.
CREATE FUNCTION retire_bound() RETURNS void
LANGUAGE plpgsql SET search_path FROM CURRENT SET lock_timeout = '100ms' AS $$
DECLARE
    bound text := format('CHECK (job_id < %L) NOT VALID', (SELECT hi FROM retirement));
BEGIN
    IF NOT EXISTS (SELECT FROM pg_constraint WHERE conrelid = 'attempt_attic'::regclass AND conname = 'in_range') THEN
        EXECUTE 'ALTER TABLE attempt_attic ADD CONSTRAINT in_range ' || bound;
    END IF;
END
$$;

CREATE FUNCTION retire_prove() RETURNS void LANGUAGE sql SET search_path FROM CURRENT AS $$
    ALTER TABLE attempt_attic VALIDATE CONSTRAINT in_range
$$;

-- The next pages, of the old attic all rows, of the range those that are unfinished; false when all are copied. What changes
-- meanwhile is noted, and a row that was seen twice is noted as well.
CREATE FUNCTION retire_copy(pages bigint) RETURNS boolean
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    done   retirement;
    finished CONSTANT text := 'state IN (''SUCCEEDED'', ''FAILED'', ''CANCELLED'', ''EXPIRED'')';
    insert_into CONSTANT text := format('INSERT INTO job_attic_next (%s) SELECT %s FROM ',
                                        row_columns('job'), row_columns('job', finished));
BEGIN
    SELECT * INTO STRICT done FROM retirement FOR UPDATE;
    EXECUTE format('LOCK TABLE job_attic, %I IN ACCESS SHARE MODE', done.name);
    IF NOT still_the_same() THEN
        RAISE EXCEPTION 'a table of % was rewritten while its rows were copied', done.name
            USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Run the command again; the copying begins anew.';
    END IF;
    IF done.attic_page < done.attic_pages THEN
        EXECUTE insert_into || 'job_attic WHERE ctid >= $1 AND ctid < $2 ON CONFLICT DO NOTHING'
        USING format('(%s,0)', done.attic_page)::tid, format('(%s,0)', done.attic_page + pages)::tid;
        UPDATE retirement SET attic_page = attic_page + pages;
    ELSIF done.range_page < done.range_pages THEN
        EXECUTE insert_into || format('%I WHERE ctid >= $1 AND ctid < $2 AND NOT %s ON CONFLICT DO NOTHING',
                                      done.name, finished)
        USING format('(%s,0)', done.range_page)::tid, format('(%s,0)', done.range_page + pages)::tid;
        UPDATE retirement SET range_page = range_page + pages;
    ELSE
        RETURN false;
    END IF;
    RETURN true;
END
$$;

-- Rows that changed are copied again as they are now; how many entries were taken. An entry that is not committed yet stays,
-- and so does what it noted.
CREATE FUNCTION retire_catch_up(entries bigint) RETURNS bigint
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    done     retirement;
    touched  uuid[];
    taken    bigint;
    finished CONSTANT text := 'state IN (''SUCCEEDED'', ''FAILED'', ''CANCELLED'', ''EXPIRED'')';
BEGIN
    SELECT * INTO STRICT done FROM retirement FOR UPDATE;
    WITH gone AS (
        DELETE FROM job_touched WHERE ctid = ANY (ARRAY(SELECT ctid FROM job_touched LIMIT entries)) RETURNING id
    )
    SELECT array_agg(DISTINCT id), count(*) INTO touched, taken FROM gone;
    IF taken > 0 THEN
        DELETE FROM job_attic_next WHERE id = ANY (touched);
        EXECUTE format('INSERT INTO job_attic_next (%s) SELECT %s FROM job_attic WHERE id = ANY ($1)',
                       row_columns('job'), row_columns('job', finished)) USING touched;
        EXECUTE format('INSERT INTO job_attic_next (%s) SELECT %s FROM %I WHERE id = ANY ($1) AND NOT %s',
                       row_columns('job'), row_columns('job', finished), done.name, finished) USING touched;
    END IF;
    RETURN taken;
END
$$;

-- The range leaves: what changed since the last look is copied again, the range and the old attic are detached, the new attic
-- takes their place, the floor moves up. Nothing under the lock depends on how many rows there are. NULL when more than
-- at_most rows have changed: catch up and call again.
CREATE FUNCTION retire_switch(at_most bigint) RETURNS text
LANGUAGE plpgsql SET search_path FROM CURRENT SET lock_timeout = '100ms' AS $$
DECLARE
    done retirement;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('jobmaster partitions'), hashtext(current_schema()));
    SELECT * INTO STRICT done FROM retirement WHERE NOT left_job FOR UPDATE;
    IF done.attic_page < done.attic_pages OR done.range_page < done.range_pages THEN
        RAISE EXCEPTION 'the rows of % are not copied yet', done.name USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    -- Every statement locks job before its partitions: with job locked, nobody else is on its way to one.
    LOCK TABLE ONLY job, ONLY attempt IN ACCESS EXCLUSIVE MODE;
    IF NOT still_the_same() THEN
        RAISE EXCEPTION 'a table of % was rewritten while its rows were copied', done.name
            USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Run the command again; the copying begins anew.';
    END IF;
    IF (SELECT count(*) FROM (SELECT FROM job_touched LIMIT at_most + 1) AS changed) > at_most THEN
        RETURN NULL;
    END IF;
    PERFORM retire_catch_up(at_most);
    EXECUTE format('DROP TRIGGER note_touched ON %I', done.name);
    EXECUTE format('ALTER TABLE job DETACH PARTITION %I', done.name);
    EXECUTE format('ALTER TABLE attempt DETACH PARTITION %I', done.attempts);
    ALTER TABLE job DETACH PARTITION job_attic;
    ALTER TABLE attempt DETACH PARTITION attempt_attic;
    DROP TABLE job_attic;
    ALTER TABLE job_attic_next RENAME TO job_attic;
    CREATE TRIGGER job_attic_guard BEFORE INSERT ON job_attic FOR EACH ROW EXECUTE FUNCTION job_attic_guard();
    EXECUTE format('ALTER TABLE job ATTACH PARTITION job_attic FOR VALUES FROM (MINVALUE) TO (%L)', done.hi);
    EXECUTE format('ALTER TABLE attempt ATTACH PARTITION attempt_attic FOR VALUES FROM (MINVALUE) TO (%L)', done.hi);
    ALTER TABLE job_attic DROP CONSTRAINT in_range;
    ALTER TABLE attempt_attic DROP CONSTRAINT in_range;
    EXECUTE format('ALTER TABLE %I INHERIT job_detached', done.name);
    EXECUTE format('ALTER TABLE %I INHERIT attempt_detached', done.attempts);
    UPDATE watermark SET floor = done.hi, moved_at = clock_timestamp();
    UPDATE retirement SET left_job = true;
    RETURN done.name;
END
$$;

-- After the lock, for the next unfinished jobs: their copies leave the range, and their attempts move to those of the attic.
-- False when the range holds finished jobs only; then its row in the manifest is DETACHED.
CREATE FUNCTION retire_clean(jobs bigint) RETURNS boolean
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    done retirement;
    ids  uuid[];
    left_over bigint;
BEGIN
    SELECT * INTO STRICT done FROM retirement WHERE left_job FOR UPDATE;
    SELECT array_agg(id ORDER BY id) INTO ids FROM (
        SELECT id FROM job_attic
        WHERE id >= done.lo AND id < done.hi AND (done.cleaned IS NULL OR id > done.cleaned)
        ORDER BY id LIMIT jobs
    ) AS next;
    IF ids IS NOT NULL THEN
        EXECUTE format($copies$
            DELETE FROM %I WHERE id = ANY ($1) AND state NOT IN ('SUCCEEDED', 'FAILED', 'CANCELLED', 'EXPIRED') $copies$,
            done.name) USING ids;
        PERFORM set_config('jobmaster.attic_mover', 'on', true);
        -- Both have a line when a stale write was refused in the meantime: it keeps its mark.
        EXECUTE format($move$
            WITH gone AS (DELETE FROM %I WHERE job_id = ANY ($1) RETURNING %s)
            INSERT INTO attempt_attic (%s) SELECT * FROM gone
            ON CONFLICT (job_id, token, bucket_id, bucket_epoch) DO UPDATE
            SET outcome = EXCLUDED.outcome, at = EXCLUDED.at, ran_us = EXCLUDED.ran_us, error = EXCLUDED.error $move$,
            done.attempts, row_columns('attempt', 'true'), row_columns('attempt')) USING ids;
        PERFORM set_config('jobmaster.attic_mover', 'off', true);
        UPDATE retirement SET cleaned = ids[cardinality(ids)], moved = moved + cardinality(ids);
        RETURN true;
    END IF;
    EXECUTE format($left$
        SELECT count(*) FROM %I WHERE state NOT IN ('SUCCEEDED', 'FAILED', 'CANCELLED', 'EXPIRED') $left$, done.name)
    INTO left_over;
    IF left_over > 0 THEN
        RAISE EXCEPTION '% holds % unfinished jobs that are not in the attic', done.name, left_over
            USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    PERFORM keep_detached(done.name, done.attempts, done.lo, done.hi, done.moved);
    DELETE FROM retirement;
    RETURN false;
END
$$;

-- Two tables that have left job and attempt stay in the views, and their row in the manifest is DETACHED.
CREATE OR REPLACE FUNCTION keep_detached(jobs text, attempt_lines text, lo uuid, hi uuid, moved bigint) RETURNS void
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    INSERT INTO archive_manifest AS m (name, attempts, state, lo, hi, job_oid, attempt_oid, moved, detached_at)
    VALUES (jobs, attempt_lines, 'DETACHED', lo, hi, quote_ident(jobs)::regclass, quote_ident(attempt_lines)::regclass,
            moved, clock_timestamp())
    ON CONFLICT (name) DO UPDATE
    SET state = EXCLUDED.state, lo = EXCLUDED.lo, hi = EXCLUDED.hi, job_oid = EXCLUDED.job_oid,
        attempt_oid = EXCLUDED.attempt_oid, moved = EXCLUDED.moved, detached_at = EXCLUDED.detached_at
    WHERE m.state = 'SEALED';
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the manifest already knows a detached %', jobs;
    END IF;
END
$$;

DROP FUNCTION retire_range(timestamptz);
DROP FUNCTION sweep_attic(timestamptz);

-- Stragglers that have ended leave the attic as a range of their own, some pages at a time. The name of the range that takes
-- them, one that was begun before if there is one; NULL when none has ended.
CREATE FUNCTION sweep_begin(ended_before timestamptz) RETURNS text
LANGUAGE plpgsql SET search_path FROM CURRENT SET timezone = 'UTC' AS $$
DECLARE
    range_name text;
    lines      text;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('jobmaster partitions'), hashtext(current_schema()));
    SELECT name INTO range_name FROM archive_manifest WHERE state = 'SEALED' AND starts_with(name, 'job_attic_');
    IF FOUND THEN
        RETURN range_name;
    END IF;
    IF NOT EXISTS (
        SELECT FROM job_attic
        WHERE state IN ('SUCCEEDED', 'FAILED', 'CANCELLED', 'EXPIRED') AND changed_at < ended_before
    ) THEN
        RETURN NULL;
    END IF;
    range_name := 'job_attic_' || to_char(clock_timestamp(), 'YYYYMMDD_HH24MISS_US');
    lines := replace(range_name, 'job_', 'attempt_');
    EXECUTE format('CREATE TABLE %I (LIKE job INCLUDING ALL)', range_name);
    EXECUTE format('CREATE TABLE %I (LIKE attempt INCLUDING ALL)', lines);
    EXECUTE format('ALTER TABLE %I INHERIT job_detached', range_name);
    EXECUTE format('ALTER TABLE %I INHERIT attempt_detached', lines);
    INSERT INTO archive_manifest (name, attempts, lo, hi)
    SELECT range_name, lines, '00000000-0000-0000-0000-000000000000', floor FROM watermark;
    RETURN range_name;
END
$$;

-- The stragglers of some pages of the attic that have ended. A row that somebody holds is left for the next time.
CREATE FUNCTION sweep_pages(wanted text, ended_before timestamptz, from_page bigint, to_page bigint) RETURNS bigint
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    ids uuid[];
BEGIN
    SELECT array_agg(id) INTO ids FROM (
        SELECT id FROM job_attic
        WHERE ctid >= format('(%s,0)', from_page)::tid AND ctid < format('(%s,0)', to_page)::tid
          AND state IN ('SUCCEEDED', 'FAILED', 'CANCELLED', 'EXPIRED') AND changed_at < ended_before
        FOR UPDATE SKIP LOCKED
    ) AS ended;
    IF ids IS NULL THEN
        RETURN 0;
    END IF;
    EXECUTE format('WITH gone AS (DELETE FROM job_attic WHERE id = ANY ($1) RETURNING %s) INSERT INTO %I (%s) SELECT * FROM gone',
                   row_columns('job', 'true'), wanted, row_columns('job')) USING ids;
    EXECUTE format('WITH gone AS (DELETE FROM attempt_attic WHERE job_id = ANY ($1) RETURNING %s) INSERT INTO %I (%s) SELECT * FROM gone',
                   row_columns('attempt', 'true'), replace(wanted, 'job_', 'attempt_'), row_columns('attempt')) USING ids;
    RETURN cardinality(ids);
END
$$;

-- The range of the stragglers is complete: DETACHED. One that took none is gone again.
CREATE FUNCTION sweep_end(wanted text) RETURNS bigint
LANGUAGE plpgsql SET search_path FROM CURRENT SET lock_timeout = '100ms' AS $$
DECLARE
    lines   text := replace(wanted, 'job_', 'attempt_');
    swept   bigint;
    lowest  uuid;
    highest uuid;
BEGIN
    EXECUTE format('SELECT count(*), (array_agg(id ORDER BY id))[1], (array_agg(id ORDER BY id DESC))[1] FROM %I', wanted)
    INTO swept, lowest, highest;
    IF swept = 0 THEN
        EXECUTE format('DROP TABLE %I, %I', wanted, lines);
        DELETE FROM archive_manifest WHERE name = wanted AND state = 'SEALED';
    ELSE
        PERFORM keep_detached(wanted, lines, lowest, uuid_floor(uuid_moment(highest) + interval '1 millisecond'), 0);
    END IF;
    RETURN swept;
END
$$;

-- What a table of a detached range says of its last transaction, in all bits.
CREATE FUNCTION last_recorded(wanted text) RETURNS bigint LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    ahead bigint := pg_snapshot_xmax(pg_current_snapshot())::text::bigint;
    found bigint;
BEGIN
    EXECUTE format('SELECT max(coalesce(recorded_xid, $1 - (($1 - xmin::text::bigint) & 4294967295))) FROM %I', wanted)
    INTO found USING ahead;
    RETURN coalesce(found, 0);
END
$$;

-- The last step: only what is PUBLISHED and still counts what was verified, or what an operator discards. Nobody writes to a
-- detached range, and the first lock keeps it so; readers feel only the second one, which comes when everything is counted.
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
    EXECUTE format('DROP TABLE %I, %I', line.name, line.attempts);
    UPDATE archive_manifest
    SET state = 'DROPPED', dropped_at = clock_timestamp(), discarded = discard AND line.verified_at IS NULL,
        jobs_recorded = last_job, attempts_recorded = last_attempt,
        dropped_xid = pg_current_xact_id()::text::bigint
    WHERE name = wanted;
    RETURN true;
END
$$;

-- A range that has just left job still has the copies of its unfinished rows, until retire_clean has removed them.
CREATE OR REPLACE VIEW job_kept AS
SELECT * FROM job
UNION ALL
SELECT * FROM job_detached WHERE state IN ('SUCCEEDED', 'FAILED', 'CANCELLED', 'EXPIRED');

CREATE OR REPLACE VIEW attempt_kept AS SELECT * FROM attempt UNION ALL SELECT * FROM attempt_detached;
