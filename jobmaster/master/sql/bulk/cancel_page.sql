-- cancel_page: one page of a bulk operation: jobs that wait are cancelled; those in flight get a flag
-- in: $1 uuid the operation
-- in: $2 uuid its cursor, NULL = this is the first page
-- in: $3 uuid its cursor after the page
-- in: $4 json jobs of the page that are left alone, by the cause
-- in: $5 uuid[] jobs, in the order of their ids
-- in: $6 text[] states that the filter admits
-- out: jobs bigint (no row: the page was written before, or the operation has ended)
-- move: HELD|WAITING -> CANCELLED
-- fence: compare-and-set on the cursor of the operation, whose row is locked first: of two leaders one writes a page, and none
--        does after a cancel. Each job is compared with its state, under locks that are taken in the order of the ids
-- index: bulk_operation_pkey; job_pkey for each job, within the bounds of the page
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
        WHERE j.id = p.id AND j.id BETWEEN $5[1] AND $5[cardinality($5)] AND NOT j.cancel_requested
          AND j.state = ANY ($6::text[]::job_state[]) AND j.state IN ('HELD', 'WAITING', 'ASSIGNED', 'PROCESSING')
        FOR UPDATE
    ) AS held
), cancelled AS (
    UPDATE job j
    SET state = CASE WHEN j.state IN ('HELD', 'WAITING') THEN 'CANCELLED'::job_state ELSE j.state END,
        changed_at = CASE WHEN j.state IN ('HELD', 'WAITING') THEN clock_timestamp() ELSE j.changed_at END,
        expires_at = NULL,
        cancel_requested = true
    WHERE j.id = ANY (ARRAY (SELECT id FROM locked)) AND j.id BETWEEN $5[1] AND $5[cardinality($5)]
      AND j.state IN ('HELD', 'WAITING', 'ASSIGNED', 'PROCESSING')
    RETURNING j.id
)
UPDATE bulk_operation b
SET state = 'RUNNING', cursor = $3::uuid, started_at = coalesce(b.started_at, clock_timestamp()), moved_at = clock_timestamp(),
    changed = b.changed + (SELECT count(*) FROM cancelled),
    skipped = bulk_sum(bulk_sum(b.skipped, $4::json::jsonb),
                       jsonb_build_object('CHANGED', cardinality($5) - (SELECT count(*) FROM cancelled)))
FROM op WHERE b.id = op.id
RETURNING (SELECT count(*) FROM cancelled) AS jobs
