-- await_confirmation: a job whose handler has returned waits for its confirmation from outside
-- in: $1 uuid job
-- in: $2 integer token
-- in: $3 uuid bucket
-- in: $4 bigint bucket epoch
-- in: $5 integer attempts used up, this one included
-- in: $6 double precision seconds from now until which it may be confirmed
-- in: $7 double precision seconds after that until its next attempt
-- in: $8 bytea error (JSON) of the job when no confirmation comes; NULL when it has another attempt
-- in: $9 bigint waited, microseconds
-- in: $10 bigint ran, microseconds
-- out: state text
-- move: ASSIGNED|PROCESSING -> WAITING|CANCELLED
-- fence: identity (token, bucket, epoch) on the row and a state in flight; no bucket lock: the row stays with the run that it
--        waits for, and belongs to no bucket's work any more. The row is there: its start was written. One that a failover
--        forgot is not made anew (no row comes back), and the attempt counts as failed.
--        A job that is cancelled here has no run time: by that the trigger of batch notes knows that no agent reports its end.
-- index: job_pkey, one partition
UPDATE job
SET state = CASE WHEN cancel_requested THEN 'CANCELLED'::job_state ELSE 'WAITING' END,
    attempt = $5::integer,
    expires_at = CASE WHEN NOT cancel_requested THEN clock_timestamp() + make_interval(secs => $6::double precision) END,
    due_at = clock_timestamp() + make_interval(secs => $6 + $7::double precision),
    error = CASE WHEN NOT cancel_requested THEN $8::bytea END,
    waited_us = $9::bigint, ran_us = CASE WHEN NOT cancel_requested THEN $10::bigint END, changed_at = clock_timestamp()
WHERE id = $1::uuid AND token = $2::integer AND bucket_id = $3::uuid AND bucket_epoch = $4::bigint
  AND state IN ('ASSIGNED', 'PROCESSING')
RETURNING state::text AS state
