-- cancel: an operator ends a bulk operation; what it has changed stays so
-- in: $1 uuid the operation
-- in: $2 text the actor
-- out: id uuid (no row: it had ended, or there is none)
-- move: nothing
-- fence: compare-and-set on the state. It waits for a page that is being written, and no page is written after it
-- index: bulk_operation_pkey
WITH ended AS (
    UPDATE bulk_operation SET state = 'CANCELLED', ended_at = clock_timestamp()
    WHERE id = $1::uuid AND state IN ('WAITING', 'RUNNING')
    RETURNING id, changed, skipped
), logged AS (
    INSERT INTO operator_log (actor, action, subject, detail)
    SELECT $2::text, 'bulk cancelled', id::text, jsonb_build_object('changed', changed, 'skipped', skipped) FROM ended
)
SELECT id FROM ended
