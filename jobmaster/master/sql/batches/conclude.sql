-- conclude: a batch whose jobs have all ended gets its final state, and the callbacks that follow become jobs
-- in: $1 uuid batch
-- in: $2 text why it ends before all of its jobs, empty: only if all have ended
-- in: $3 uuid id of the callback of every end
-- in: $4 uuid id of the callback of success or failure
-- out: state text, name text, parent uuid, lanes text[], priorities smallint[] (no row: jobs are left, or it has ended)
-- move: none -> HELD
-- fence: compare-and-set on the state, with the count in the same statement: ended jobs stay ended, so a count that is older
--        than the lock is never too high. size and nested_changes are read again under the lock. A job that was stored although
--        its producer had no answer may be beyond the size: the batch ends with it, too. Callbacks are fired exactly once.
-- index: batch_pkey; batch_range_batch; one range of job_pkey for each range; quarantine (job_id, reason); batch_dropped_pkey;
--        batch_parent
WITH counted AS MATERIALIZED (
    SELECT succeeded, failed, cancelled, expired, held + in_flight AS unfinished,
           succeeded + failed + cancelled + expired AS ended
    FROM batch_count($1::uuid)
), inner_batches AS MATERIALIZED (
    SELECT count(*) FILTER (WHERE look_at IS NOT NULL) AS going_on,
           count(*) FILTER (WHERE state IN ('FAILED', 'CANCELLED')) AS unsuccessful,
           (SELECT nested_changes FROM batch WHERE id = $1) AS changes
    FROM batch WHERE parent = $1
), ended AS (
    UPDATE batch b
    SET state = CASE WHEN b.cancel_requested THEN 'CANCELLED'
                     WHEN $2::text = '' AND c.ended = c.succeeded AND n.unsuccessful = 0 THEN 'SUCCEEDED'
                     ELSE 'FAILED' END,
        reason = $2, ended_at = clock_timestamp(), look_at = NULL, silent_after = NULL,
        size = greatest(CASE b.state WHEN 'OPEN' THEN 0 ELSE b.size END, c.ended + c.unfinished),
        succeeded = c.succeeded, failed = c.failed, cancelled = c.cancelled, expired = c.expired, unfinished = c.unfinished,
        missing = CASE b.state WHEN 'OPEN' THEN 0 ELSE greatest(b.size - c.ended - c.unfinished, 0) END
    FROM counted c, inner_batches n
    WHERE b.id = $1 AND CASE WHEN $2 = ''
                             THEN b.state = 'CLOSED' AND c.ended >= b.size AND c.unfinished = 0
                                  AND n.going_on = 0 AND n.changes = b.nested_changes
                             ELSE b.state IN ('OPEN', 'CLOSED') END
    RETURNING b.id, b.state, b.name, b.parent
), fired AS (
    UPDATE batch_callback f SET job_id = CASE f.occasion WHEN 'complete' THEN $3::uuid ELSE $4::uuid END
    FROM ended e
    WHERE f.batch = e.id
      AND f.occasion = ANY (CASE e.state WHEN 'SUCCEEDED' THEN '{complete,success}' WHEN 'FAILED' THEN '{complete,failure}'
                                         ELSE '{complete}' END::text[])
    RETURNING f.job_id, f.priority, f.lane, f.handler, f.args, f.headers
), made AS (
    INSERT INTO job (id, state, priority, lane, handler, token, due_at, expires_at, args, headers)
    SELECT job_id, 'HELD', priority, lane, handler, 1, clock_timestamp(), expires_of(headers), args, headers
    FROM fired ORDER BY job_id
)
SELECT e.state, e.name, e.parent,
       coalesce((SELECT array_agg(lane ORDER BY lane, priority) FROM fired), '{}') AS lanes,
       coalesce((SELECT array_agg(priority ORDER BY lane, priority) FROM fired), '{}') AS priorities
FROM ended e
