-- mark_moved: jobs that the master of another cluster has are MOVED here
-- in: $1 uuid[] jobs, locked by this transaction
-- out: moved bigint
-- move: HELD|WAITING -> MOVED
-- fence: the state, under the locks of lock_page; the same transaction empties the page that is in doubt
-- index: job_pkey, put_off_pkey
WITH marked AS (
    UPDATE job SET state = 'MOVED', changed_at = clock_timestamp()
    WHERE id = ANY ($1::uuid[]) AND state IN ('HELD', 'WAITING')
    RETURNING id
), void AS (
    DELETE FROM put_off WHERE job_id = ANY ($1)
), noted AS (
    UPDATE cluster_move SET page = '{}', moved = moved + (SELECT count(*) FROM marked)
)
SELECT count(*) AS moved FROM marked
