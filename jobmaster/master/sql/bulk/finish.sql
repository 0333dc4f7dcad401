-- finish: a bulk operation has looked at every job of its range, or cannot go on
-- in: $1 uuid the operation
-- in: $2 uuid its cursor, NULL = no page was written
-- in: $3 text why it has failed, '' = it is done
-- in: $4 json jobs that were left alone since the last page, by the cause
-- out: changed bigint, skipped json
-- move: nothing
-- fence: compare-and-set on state and cursor: after a page of another leader nothing is written
-- index: bulk_operation_pkey
WITH ended AS (
    UPDATE bulk_operation
    SET state = CASE $3::text WHEN '' THEN 'DONE' ELSE 'FAILED' END::bulk_state, error = $3, ended_at = clock_timestamp(),
        started_at = coalesce(started_at, clock_timestamp()), cursor = CASE $3 WHEN '' THEN highest ELSE cursor END,
        skipped = bulk_sum(skipped, $4::json::jsonb)
    WHERE id = $1::uuid AND state IN ('WAITING', 'RUNNING') AND cursor IS NOT DISTINCT FROM $2::uuid
    RETURNING id, kind, actor, changed, skipped, error
), logged AS (
    INSERT INTO operator_log (actor, action, subject, detail)
    SELECT actor, CASE error WHEN '' THEN 'bulk done' ELSE 'bulk failed' END, id::text,
           jsonb_build_object('kind', kind, 'changed', changed, 'skipped', skipped, 'error', error)
    FROM ended
)
SELECT changed, skipped::json AS skipped FROM ended
