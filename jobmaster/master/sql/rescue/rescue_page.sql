-- rescue_page: jobs found in the store of a bucket being drained go back to the master, token + 1
-- in: $1 uuid bucket
-- in: $2 bigint the rescuer's epoch
-- in: $3 uuid rescuer
-- in: $4 smallint the bucket's priority
-- in: $5 text the bucket's lane
-- in: $6 boolean found claimed: each may have been started, and counts one rescue unless it was rescued before
-- in: $7 integer rescues at which a job fails
-- in: $8 bytea error (JSON) of a job that fails so
-- in: $9 uuid lowest id
-- in: $10 uuid highest id
-- in: $11 uuid[] ids
-- in: $12 integer[] tokens
-- in: $13 text[] handlers
-- in: $14 bytea[] args
-- in: $15 bigint[] due times in microseconds since 1970, 0 = at once
-- in: $16 bytea[] headers
-- in: $17 integer[] attempts used up
-- in: $18 integer[] rescues
-- in: $19 bytea error (JSON) of a job that was started and must not be started again
-- out: bucket_ok boolean, accepted uuid[], cancelled uuid[] (those of accepted that became CANCELLED),
--      failed uuid[] (those that became FAILED)
-- move: none|ASSIGNED|PROCESSING -> HELD|FAILED|CANCELLED
-- fence: the rescuer's bucket lock (id, epoch, owner, DRAINING) FOR SHARE. Rows are locked in id order and read under that
--        lock; one that is final or names another bucket is left alone. The token grows, so whatever the old owner still
--        writes about the job is refused; a job that ends here keeps the identity that it ends for. A job without a row
--        gets token 2, above the copy's 1. A job that may be started once only is PROCESSING before it is started, and its
--        start is refused from here on: any other row of it, or none, proves that it never began. So it is with a job that was
--        rescued before: it is PROCESSING before it starts, and counts only then.
-- index: bucket_pkey for the lock, job_pkey; the bounds prune partitions. IS NOT DISTINCT FROM keeps job_by_bucket out: it
--        would read the whole bucket and compare each row with each id
WITH b AS MATERIALIZED (
    SELECT 1 FROM bucket
    WHERE id = $1::uuid AND epoch = $2::bigint AND owner = $3::uuid AND state = 'DRAINING'
    FOR SHARE
), copy AS MATERIALIZED (
    SELECT c.*, CASE WHEN $6::boolean AND c.rescues = 0 THEN 1 ELSE 0 END AS counts
    FROM b, unnest($11::uuid[], $12::integer[], $13::text[], $14::bytea[], $15::bigint[], $16::bytea[], $17::integer[],
                   $18::integer[])
         AS c (id, token, handler, args, due_us, headers, attempt, rescues)
), mine AS MATERIALIZED (
    SELECT j.id, j.state, j.token, j.bucket_epoch, j.cancel_requested,
           j.rescues + CASE WHEN $6 AND j.rescues = 0 OR j.state = 'PROCESSING' THEN 1 ELSE 0 END AS rescues,
           $6 AND j.rescues = 0 OR j.state = 'PROCESSING' AS counts,
           j.state = 'PROCESSING' AND is_at_most_once(j.headers) AS begun_once
    FROM copy JOIN job j ON j.id = copy.id AND j.id BETWEEN $9::uuid AND $10::uuid
    WHERE j.bucket_id IS NOT DISTINCT FROM $1 AND j.state IN ('ASSIGNED', 'PROCESSING')
    ORDER BY j.id
    FOR UPDATE OF j
), decided AS (
    SELECT *, CASE WHEN cancel_requested THEN 'CANCELLED'
                   WHEN begun_once OR counts AND rescues >= $7::integer THEN 'FAILED'
                   ELSE 'HELD' END::job_state AS becomes
    FROM mine
), moved AS (
    UPDATE job j
    SET state = v.becomes,
        token = CASE v.becomes WHEN 'HELD' THEN j.token + 1 ELSE j.token END,
        bucket_id = CASE v.becomes WHEN 'HELD' THEN NULL ELSE j.bucket_id END,
        bucket_epoch = CASE v.becomes WHEN 'HELD' THEN NULL ELSE j.bucket_epoch END,
        rescues = v.rescues,
        due_at = coalesce(j.due_at, clock_timestamp()),
        expires_at = CASE v.becomes WHEN 'HELD' THEN expires_of(j.headers) END,
        changed_at = clock_timestamp(),
        error = CASE v.becomes WHEN 'FAILED' THEN CASE WHEN v.begun_once THEN $19::bytea ELSE $8::bytea END END
    FROM decided v
    WHERE j.id = v.id AND j.id BETWEEN $9 AND $10
    RETURNING j.id, j.state
), lines AS (
    INSERT INTO attempt (job_id, token, bucket_id, bucket_epoch, outcome)
    SELECT id, token, $1, bucket_epoch, 'lost' FROM decided WHERE state = 'PROCESSING' AND becomes = 'HELD' ORDER BY id
    ON CONFLICT DO NOTHING
), fresh AS (
    INSERT INTO job (id, state, priority, lane, handler, token, bucket_id, bucket_epoch, attempt, rescues, due_at,
                     expires_at, args, headers, error)
    SELECT id,
           (CASE WHEN lost THEN 'FAILED' ELSE 'HELD' END)::job_state,
           $4::smallint, $5::text, handler,
           CASE WHEN lost THEN token ELSE 2 END,
           CASE WHEN lost THEN $1 END,
           CASE WHEN lost THEN $2 - 1 END,
           attempt, rescues + counts,
           coalesce(from_us(nullif(due_us, 0)), clock_timestamp()),
           CASE WHEN NOT lost THEN expires_of(headers) END,
           args, headers,
           CASE WHEN lost THEN $8 END
    FROM copy, LATERAL (SELECT counts > 0 AND rescues + counts >= $7) AS limits (lost)
    WHERE id NOT IN (SELECT id FROM mine)
    ORDER BY id
    ON CONFLICT (id) DO NOTHING
    RETURNING id, state
), noted AS (
    INSERT INTO batch_note (lo) SELECT batch_range_of(id) FROM fresh WHERE state = 'FAILED' ORDER BY id
), done AS (
    SELECT id, state FROM moved UNION ALL SELECT id, state FROM fresh
)
SELECT EXISTS (SELECT FROM b) AS bucket_ok,
       coalesce(array_agg(id), '{}') AS accepted,
       coalesce(array_agg(id) FILTER (WHERE state = 'CANCELLED'), '{}') AS cancelled,
       coalesce(array_agg(id) FILTER (WHERE state = 'FAILED'), '{}') AS failed
FROM done
