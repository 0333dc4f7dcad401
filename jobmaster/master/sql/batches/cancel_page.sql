-- cancel_page: jobs of a batch that wait are cancelled; those in flight get a flag. One page of the ranges of ids
-- in: $1 uuid batch
-- in: $2 uuid the id after which the page begins, NULL = the first
-- in: $3 integer limit
-- out: last_id uuid (NULL: no job was left), jobs bigint
-- move: HELD|WAITING -> CANCELLED
-- fence: compare-and-set on the state, under locks that are taken in the order of the ids; final rows are left alone
-- index: batch_range_batch; job_pkey, in order up to the limit
WITH ranges AS MATERIALIZED (
    SELECT r.lo, batch_range_end(r.lo) AS hi FROM batch_range r JOIN batch b ON b.id = r.batch
    WHERE b.id = $1::uuid AND b.cancel_requested
), page AS MATERIALIZED (
    SELECT j.id FROM ranges r
    CROSS JOIN LATERAL (
        SELECT k.id FROM job k
        WHERE k.id > greatest(r.lo, $2::uuid) AND k.id <= r.hi AND NOT k.cancel_requested
          AND k.state IN ('HELD', 'WAITING', 'ASSIGNED', 'PROCESSING')
        ORDER BY k.id LIMIT $3::integer
    ) j
    ORDER BY j.id LIMIT $3
), locked AS MATERIALIZED (
    SELECT held.id FROM page p
    CROSS JOIN LATERAL (
        SELECT j.id FROM job j
        WHERE j.id = p.id AND j.state IN ('HELD', 'WAITING', 'ASSIGNED', 'PROCESSING') FOR UPDATE
    ) AS held
), cancelled AS (
    UPDATE job j
    SET state = CASE WHEN j.state IN ('HELD', 'WAITING') THEN 'CANCELLED'::job_state ELSE j.state END,
        changed_at = CASE WHEN j.state IN ('HELD', 'WAITING') THEN clock_timestamp() ELSE j.changed_at END,
        expires_at = NULL,
        cancel_requested = true
    WHERE j.id = ANY (ARRAY (SELECT id FROM locked))
      AND j.id BETWEEN (SELECT id FROM locked ORDER BY id LIMIT 1) AND (SELECT id FROM locked ORDER BY id DESC LIMIT 1)
      AND j.state IN ('HELD', 'WAITING', 'ASSIGNED', 'PROCESSING')
    RETURNING j.id
)
SELECT (SELECT id FROM page ORDER BY id DESC LIMIT 1) AS last_id, (SELECT count(*) FROM cancelled) AS jobs
