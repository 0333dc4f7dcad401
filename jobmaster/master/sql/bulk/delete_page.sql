-- delete_page: one page of a bulk operation: the contents of jobs that have ended are deleted; what proves their ends stays
-- in: $1 uuid the operation
-- in: $2 uuid its cursor, NULL = this is the first page
-- in: $3 uuid its cursor after the page
-- in: $4 json jobs of the page that are left alone, by the cause
-- in: $5 uuid[] jobs, in the order of their ids
-- in: $6 text[] states that the filter admits
-- out: jobs bigint (no row: the page was written before, or the operation has ended)
-- move: nothing
-- fence: compare-and-set on the cursor of the operation, whose row is locked first: of two leaders one writes a page, and none
--        does after a cancel. A row that is final stays as it is, with its state, its times and its identity: a late copy of the job is refused by it. It
--        was recorded before; a number ahead of every transaction fills in the bits that xmin lacks, so no event comes again. A job
--        that has failed keeps an error, without which its row would be no outcome
-- index: bulk_operation_pkey; job_pkey, attempt_pkey, job_log_pkey and run_progress_pkey for each job, within the bounds of the page
WITH op AS MATERIALIZED (
    SELECT id FROM bulk_operation
    WHERE id = $1::uuid AND state IN ('WAITING', 'RUNNING') AND cursor IS NOT DISTINCT FROM $2::uuid
    FOR UPDATE
), page AS MATERIALIZED (
    SELECT id FROM unnest($5::uuid[]) AS given (id) WHERE EXISTS (SELECT FROM op) ORDER BY id
), locked AS MATERIALIZED (
    SELECT ended.id FROM page p
    CROSS JOIN LATERAL (
        SELECT j.id FROM job j
        WHERE j.id = p.id AND j.id BETWEEN $5[1] AND $5[cardinality($5)] AND j.state = ANY ($6::text[]::job_state[])
          AND j.state IN ('SUCCEEDED', 'FAILED', 'CANCELLED', 'EXPIRED') AND j.headers <> deleted_headers()
        FOR UPDATE
    ) AS ended
), attempts AS (
    UPDATE attempt a SET error = NULL,
        recorded_xid = coalesce(a.recorded_xid, pg_snapshot_xmax(pg_current_snapshot())::text::bigint + 1073741824
            - ((pg_snapshot_xmax(pg_current_snapshot())::text::bigint + 1073741824 - a.xmin::text::bigint) & 4294967295))
    WHERE a.job_id IN (SELECT id FROM locked) AND a.job_id BETWEEN $5[1] AND $5[cardinality($5)] AND a.error IS NOT NULL
), lines AS (
    DELETE FROM job_log l WHERE l.job_id IN (SELECT id FROM locked)
), progress AS (
    DELETE FROM run_progress r WHERE r.job_id IN (SELECT id FROM locked)
), deleted AS (
    UPDATE job j
    SET args = '{}', headers = deleted_headers(), result = NULL,
        error = CASE WHEN j.error IS NOT NULL
                     THEN '{"type":"Deleted","message":"the contents of the job have been deleted","reason":"deleted"}'::bytea END,
        recorded_xid = coalesce(j.recorded_xid, pg_snapshot_xmax(pg_current_snapshot())::text::bigint + 1073741824
            - ((pg_snapshot_xmax(pg_current_snapshot())::text::bigint + 1073741824 - j.xmin::text::bigint) & 4294967295))
    WHERE j.id = ANY (ARRAY (SELECT id FROM locked)) AND j.id BETWEEN $5[1] AND $5[cardinality($5)]
    RETURNING j.id
)
UPDATE bulk_operation b
SET state = 'RUNNING', cursor = $3::uuid, started_at = coalesce(b.started_at, clock_timestamp()), moved_at = clock_timestamp(),
    changed = b.changed + (SELECT count(*) FROM deleted),
    skipped = bulk_sum(bulk_sum(b.skipped, $4::json::jsonb),
                       jsonb_build_object('CHANGED', cardinality($5) - (SELECT count(*) FROM deleted)))
FROM op WHERE b.id = op.id
RETURNING (SELECT count(*) FROM deleted) AS jobs
