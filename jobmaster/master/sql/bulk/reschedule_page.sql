-- reschedule_page: one page of a bulk operation: jobs that wait in the master get another due time, priority or lane
-- in: $1 uuid the operation
-- in: $2 uuid its cursor, NULL = this is the first page
-- in: $3 uuid its cursor after the page
-- in: $4 json jobs of the page that are left alone, by the cause
-- in: $5 uuid[] jobs, in the order of their ids
-- in: $6 bigint due time in microseconds since 1970, 0 = now, NULL = the present one
-- in: $7 smallint priority, NULL = the present one
-- in: $8 text lane, NULL = the present one
-- out: jobs bigint (no row: the page was written before, or the operation has ended)
-- move: HELD -> HELD
-- fence: compare-and-set on the cursor of the operation, whose row is locked first: of two leaders one writes a page, and none
--        does after a cancel. Each job as by change_held, under locks that are taken in the order of the ids
-- index: bulk_operation_pkey; job_pkey for each job, within the bounds of the page; put_off_pkey
WITH op AS MATERIALIZED (
    SELECT id FROM bulk_operation
    WHERE id = $1::uuid AND state IN ('WAITING', 'RUNNING') AND cursor IS NOT DISTINCT FROM $2::uuid
    FOR UPDATE
), page AS MATERIALIZED (
    SELECT id FROM unnest($5::uuid[]) AS given (id) WHERE EXISTS (SELECT FROM op) ORDER BY id
), locked AS MATERIALIZED (
    SELECT held.id FROM page p
    CROSS JOIN LATERAL (
        SELECT j.id FROM job j
        WHERE j.id = p.id AND j.id BETWEEN $5[1] AND $5[cardinality($5)] AND j.state = 'HELD'
          AND (j.expires_at IS NULL OR coalesce($6::bigint, 0) = 0 OR from_us($6::bigint) < j.expires_at)
        FOR UPDATE
    ) AS held
), changed AS (
    UPDATE job j
    SET due_at = CASE WHEN $6 > 0 THEN from_us($6) ELSE
            least(coalesce((SELECT p.due_at FROM put_off p WHERE p.job_id = j.id AND p.until = j.due_at), j.due_at),
                  CASE $6 WHEN 0 THEN clock_timestamp() END) END,
        priority = coalesce($7::smallint, j.priority),
        lane = coalesce($8::text, j.lane),
        changed_at = clock_timestamp()
    WHERE j.id = ANY (ARRAY (SELECT id FROM locked)) AND j.id BETWEEN $5[1] AND $5[cardinality($5)] AND j.state = 'HELD'
    RETURNING j.id
)
UPDATE bulk_operation b
SET state = 'RUNNING', cursor = $3::uuid, started_at = coalesce(b.started_at, clock_timestamp()), moved_at = clock_timestamp(),
    changed = b.changed + (SELECT count(*) FROM changed),
    skipped = bulk_sum(bulk_sum(b.skipped, $4::json::jsonb),
                       jsonb_build_object('CHANGED', cardinality($5) - (SELECT count(*) FROM changed)))
FROM op WHERE b.id = op.id
RETURNING (SELECT count(*) FROM changed) AS jobs
