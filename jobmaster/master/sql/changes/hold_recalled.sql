-- hold_recalled: a job whose copy was recalled from its bucket waits in the master, with another due time, priority or lane
-- in: $1 uuid job
-- in: $2 integer token
-- in: $3 uuid bucket
-- in: $4 bigint bucket epoch
-- in: $5 bigint due time in microseconds since 1970, 0 = now, NULL = the present one
-- in: $6 smallint priority, NULL = the present one
-- in: $7 text lane, NULL = the present one
-- in: $8 text the actor
-- in: $9 text the action, for the operator log
-- out: state text, due_at timestamptz, priority smallint, lane text, handler text
-- move: ASSIGNED -> HELD|CANCELLED
-- fence: identity (token, bucket, epoch) on the row, still ASSIGNED: between the recall and this write a rescuer or the owner's
--        anti-entropy may have given the job back, and another agent may run it. No bucket lock: the row leaves its bucket. The
--        token stays, as with release: the copy that had it was in no owner's memory, and the next assignment adds one. A cancel request turns HELD into CANCELLED.
-- index: job_pkey, one partition
WITH changed AS (
    UPDATE job j
    SET state = CASE WHEN j.cancel_requested THEN 'CANCELLED'::job_state ELSE 'HELD' END,
        bucket_id = CASE WHEN j.cancel_requested THEN j.bucket_id END,
        bucket_epoch = CASE WHEN j.cancel_requested THEN j.bucket_epoch END,
        due_at = CASE WHEN j.cancel_requested THEN j.due_at WHEN $5::bigint > 0 THEN from_us($5::bigint)
                 ELSE coalesce(least(j.due_at, CASE $5::bigint WHEN 0 THEN clock_timestamp() END), clock_timestamp()) END,
        priority = CASE WHEN j.cancel_requested THEN j.priority ELSE coalesce($6::smallint, j.priority) END,
        lane = CASE WHEN j.cancel_requested THEN j.lane ELSE coalesce($7::text, j.lane) END,
        expires_at = CASE WHEN NOT j.cancel_requested THEN expires_of(j.headers) END,
        changed_at = clock_timestamp()
    WHERE j.id = $1::uuid AND j.token = $2::integer AND j.bucket_id IS NOT DISTINCT FROM $3::uuid
      AND j.bucket_epoch = $4::bigint AND j.state = 'ASSIGNED'
    RETURNING j.id, j.state, j.due_at, j.priority, j.lane, j.handler
), logged AS (
    INSERT INTO operator_log (actor, action, subject, detail)
    SELECT $8::text, $9::text, id::text, json_strip_nulls(json_build_object(
        'due_at', CASE WHEN $5::bigint IS NOT NULL THEN due_at END, 'priority', $6, 'lane', $7))::jsonb
    FROM changed WHERE state = 'HELD'
)
SELECT state::text AS state, due_at, priority, lane, handler FROM changed
