-- retry_page: one page of a bulk operation: jobs that have ended without success run again, as new jobs
-- in: $1 uuid the operation
-- in: $2 uuid its cursor, NULL = this is the first page
-- in: $3 uuid its cursor after the page
-- in: $4 json jobs of the page that are left alone, by the cause
-- in: $5 uuid[] jobs, in the order of their ids
-- in: $6 uuid[] ids of the new jobs
-- in: $7 boolean[] the id is reserved for the retry already
-- in: $8 text[] states that the filter admits
-- in: $9 bytea[] headers of the new jobs
-- in: $10 bytea[] digests of the payloads
-- in: $11 bytea[] arguments, NULL = those of the old job
-- out: jobs bigint (no row: the page was written before, or the operation has ended)
-- move: none -> HELD
-- fence: compare-and-set on the cursor of the operation, whose row is locked first: of two leaders one writes a page, and none
--        does after a cancel. Each job by its idempotency key, as a retry of one job: a second retry makes no second job
-- index: bulk_operation_pkey; job_pkey for each job, within the bounds of the page, and as the arbiter; idempotency_pkey, as the arbiter
WITH op AS MATERIALIZED (
    SELECT id FROM bulk_operation
    WHERE id = $1::uuid AND state IN ('WAITING', 'RUNNING') AND cursor IS NOT DISTINCT FROM $2::uuid
    FOR UPDATE
), input AS MATERIALIZED (
    SELECT new.old, new.id, new.reserved, new.headers, new.digest, j.handler, j.priority, j.lane, coalesce(new.args, j.args) AS args
    FROM unnest($5::uuid[], $6::uuid[], $7::boolean[], $9::bytea[], $10::bytea[], $11::bytea[])
             AS new (old, id, reserved, headers, digest, args)
         JOIN job j ON j.id = new.old AND j.id BETWEEN $5[1] AND $5[cardinality($5)]
    WHERE EXISTS (SELECT FROM op) AND j.state = ANY ($8::text[]::job_state[]) AND j.state IN ('FAILED', 'CANCELLED', 'EXPIRED')
      AND j.headers <> deleted_headers()
), reserved AS (
    INSERT INTO idempotency (scope, key, job_id, digest)
    SELECT handler, 'retry of ' || old::text, id, digest FROM input WHERE NOT reserved
    ORDER BY handler, old
    ON CONFLICT (scope, key) DO NOTHING
    RETURNING job_id
), made AS (
    INSERT INTO job (id, state, priority, lane, handler, token, due_at, args, headers)
    SELECT id, 'HELD', priority, lane, handler, 1, clock_timestamp(), args, headers FROM input
    WHERE reserved OR id IN (SELECT job_id FROM reserved)
    ORDER BY id
    ON CONFLICT (id) DO NOTHING
    RETURNING id
)
UPDATE bulk_operation b
SET state = 'RUNNING', cursor = $3::uuid, started_at = coalesce(b.started_at, clock_timestamp()), moved_at = clock_timestamp(),
    changed = b.changed + (SELECT count(*) FROM made),
    skipped = bulk_sum(bulk_sum(b.skipped, $4::json::jsonb),
                       jsonb_build_object('CHANGED', cardinality($5) - (SELECT count(*) FROM made)))
FROM op WHERE b.id = op.id
RETURNING (SELECT count(*) FROM made) AS jobs
