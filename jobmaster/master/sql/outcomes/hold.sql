-- hold: jobs given back to the master (retry later, snooze, release, flush), with a line for each attempt that failed or was
--       snoozed
-- in: $1 uuid bucket that gives them back
-- in: $2 bigint its epoch
-- in: $3 uuid[] ids
-- in: $4 smallint[] priorities
-- in: $5 text[] lanes
-- in: $6 text[] handlers
-- in: $7 integer[] tokens
-- in: $8 integer[] attempts used up
-- in: $9 integer[] rescues
-- in: $10 bigint[] due times in microseconds since 1970, 0 = now
-- in: $11 bytea[] args
-- in: $12 bytea[] headers; a snooze is counted in them, so the row takes them over when no attempt was used up. (A job that
--     was cancelled keeps its own: they may name the job that has replaced it)
-- in: $13 bytea[] errors (JSON), NULL when no attempt failed or was snoozed
-- in: $14 text[] outcomes of these attempts
-- in: $15 bigint[] ran, microseconds
-- out: accepted uuid[], cancelled uuid[] (those of accepted that became CANCELLED)
-- move: none|ASSIGNED|PROCESSING -> HELD|CANCELLED
-- fence: identity (token, bucket, epoch) on the row and a state in flight. The row loses its bucket and keeps its token:
--        the next assignment adds one. A row that is HELD with our token was written by us; or it is token 1 and the
--        producer put the same job there; or a release or a change took the job out of its bucket while no owner had claimed
--        the copy (onboarding/release, changes/hold_recalled). It is held each time, and the caller takes it as accepted when it
--        reads it back. Every other way out of our assignment adds one. A cancel request turns HELD into CANCELLED, which keeps the identity;
--        its error then stands on the row, because one identity has one line.
-- index: job_pkey, as the arbiter
WITH written AS (
    INSERT INTO job AS j (id, state, priority, lane, handler, token, attempt, rescues, due_at, expires_at, args, headers)
    SELECT id, 'HELD', priority, lane, handler, token, attempt, rescues,
           coalesce(from_us(nullif(due_us, 0)), clock_timestamp()), expires_of(headers), args, headers
    FROM unnest($3::uuid[], $4::smallint[], $5::text[], $6::text[], $7::integer[], $8::integer[], $9::integer[],
                $10::bigint[], $11::bytea[], $12::bytea[])
         AS new (id, priority, lane, handler, token, attempt, rescues, due_us, args, headers)
    ORDER BY id
    ON CONFLICT (id) DO UPDATE
    SET state = CASE WHEN j.cancel_requested THEN 'CANCELLED'::job_state ELSE 'HELD' END,
        bucket_id = CASE WHEN j.cancel_requested THEN j.bucket_id END,
        bucket_epoch = CASE WHEN j.cancel_requested THEN j.bucket_epoch END,
        attempt = EXCLUDED.attempt,
        headers = CASE WHEN j.cancel_requested OR j.attempt <> EXCLUDED.attempt
                            OR is_at_most_once(j.headers) > is_at_most_once(EXCLUDED.headers)
                       THEN j.headers ELSE EXCLUDED.headers END,
        rescues = EXCLUDED.rescues,
        due_at = EXCLUDED.due_at,
        expires_at = CASE WHEN NOT j.cancel_requested THEN EXCLUDED.expires_at END,
        changed_at = clock_timestamp(),
        error = CASE WHEN j.cancel_requested THEN
            (SELECT e.error FROM unnest($3, $13::bytea[]) AS e (id, error) WHERE e.id = EXCLUDED.id LIMIT 1) END
    WHERE j.token = EXCLUDED.token
      AND j.bucket_id = $1::uuid
      AND j.bucket_epoch = $2::bigint
      AND j.state IN ('ASSIGNED', 'PROCESSING')
    RETURNING j.id, j.state
), lines AS (
    INSERT INTO attempt (job_id, token, bucket_id, bucket_epoch, outcome, ran_us, error)
    SELECT id, token, $1, $2, outcome, ran_us, error
    FROM unnest($3, $7, $14::text[], $15::bigint[], $13) AS failed (id, token, outcome, ran_us, error)
    -- IS TRUE keeps this a hashed sub-select: as a join it would be nested loops, since our sessions have no other.
    WHERE error IS NOT NULL AND (id IN (SELECT id FROM written WHERE state = 'HELD')) IS TRUE
    ORDER BY id
    ON CONFLICT DO NOTHING
)
SELECT coalesce(array_agg(id), '{}') AS accepted,
       coalesce(array_agg(id) FILTER (WHERE state = 'CANCELLED'), '{}') AS cancelled
FROM written
