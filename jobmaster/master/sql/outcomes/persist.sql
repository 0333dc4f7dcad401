-- persist: rows of claimed jobs that have not ended yet, so that their claimed list may go
-- in: $1 uuid bucket
-- in: $2 bigint its epoch
-- in: $3 uuid owner
-- in: $4 uuid[] ids
-- in: $5 text[] states, ASSIGNED (queued) or PROCESSING (running)
-- in: $6 smallint[] priorities
-- in: $7 text[] lanes
-- in: $8 text[] handlers
-- in: $9 integer[] tokens
-- in: $10 integer[] attempts used up
-- in: $11 integer[] rescues
-- in: $12 bigint[] due times in microseconds since 1970, 0 = at once
-- in: $13 bytea[] args
-- in: $14 bytea[] headers
-- in: $15 double precision[] seconds from now until a running job is given to another agent, NULL = never
-- out: bucket_ok boolean, accepted uuid[]
-- move: none|ASSIGNED|PROCESSING -> ASSIGNED|PROCESSING
-- fence: bucket lock (id, epoch, owner, ACTIVE or COMPLETING) FOR SHARE, and the identity on the row, and a state in
--        flight, and no cancel request: a fenced start that is accepted here may run. The same rows again are accepted
--        again; PROCESSING never goes back to ASSIGNED. A job that must not be started twice has a mark in the headers of its
--        start, and an older write that comes late does not take that away. The time at which a running job is given to
--        another agent is set with its first PROCESSING write, and no later write moves it. It is at most ten years ahead: a
--        time that cannot be represented would refuse the whole batch.
-- index: bucket_pkey for the lock, job_pkey as the arbiter
WITH b AS MATERIALIZED (
    SELECT 1 FROM bucket
    WHERE id = $1::uuid AND epoch = $2::bigint AND owner = $3::uuid AND state IN ('ACTIVE', 'COMPLETING')
    FOR SHARE
), written AS (
    INSERT INTO job AS j (id, state, priority, lane, handler, token, bucket_id, bucket_epoch, attempt, rescues, due_at,
                          expires_at, args, headers)
    SELECT id, state::job_state, priority, lane, handler, token, $1, $2, attempt, rescues, from_us(nullif(due_us, 0)),
           CASE WHEN state = 'PROCESSING' AND late_seconds IS NOT NULL  -- least() ignores NULL
                THEN clock_timestamp() + make_interval(secs => least(late_seconds, 316224000)) END,
           args, headers
    FROM b, unnest($4::uuid[], $5::text[], $6::smallint[], $7::text[], $8::text[], $9::integer[], $10::integer[],
                   $11::integer[], $12::bigint[], $13::bytea[], $14::bytea[],
                   $15::double precision[])
         AS new (id, state, priority, lane, handler, token, attempt, rescues, due_us, args, headers, late_seconds)
    ORDER BY id
    ON CONFLICT (id) DO UPDATE
    SET state = CASE j.state WHEN 'PROCESSING' THEN j.state ELSE EXCLUDED.state END,
        expires_at = CASE j.state WHEN 'PROCESSING' THEN j.expires_at ELSE EXCLUDED.expires_at END,
        headers = CASE WHEN is_at_most_once(j.headers) THEN j.headers ELSE EXCLUDED.headers END,
        changed_at = clock_timestamp()
    WHERE j.token = EXCLUDED.token
      AND j.bucket_id = EXCLUDED.bucket_id
      AND j.bucket_epoch = EXCLUDED.bucket_epoch
      AND j.state IN ('ASSIGNED', 'PROCESSING')
      AND NOT j.cancel_requested
    RETURNING j.id
)
SELECT EXISTS (SELECT FROM b) AS bucket_ok, coalesce(array_agg(id), '{}') AS accepted FROM written
