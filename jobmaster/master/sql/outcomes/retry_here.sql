-- retry_here: jobs whose attempt failed or was snoozed and that stay assigned to their bucket for the next one, token + 1
-- in: $1 uuid bucket
-- in: $2 bigint its epoch
-- in: $3 uuid owner
-- in: $4 uuid[] ids
-- in: $5 smallint[] priorities
-- in: $6 text[] lanes
-- in: $7 text[] handlers
-- in: $8 integer[] tokens (of the attempt that failed)
-- in: $9 integer[] attempts used up
-- in: $10 integer[] rescues
-- in: $11 bigint[] due times in microseconds since 1970, 0 = at once
-- in: $12 bytea[] args
-- in: $13 bytea[] headers; a snooze is counted in them, so the row takes them over when no attempt was used up. (A job that
--     was cancelled keeps its own: they may name the job that has replaced it)
-- in: $14 bytea[] errors (JSON), NULL when no attempt failed or was snoozed
-- in: $15 text[] outcomes of these attempts
-- in: $16 bigint[] ran, microseconds
-- out: bucket_ok boolean, accepted uuid[], cancelled uuid[] (those of accepted that became CANCELLED)
-- move: none|ASSIGNED|PROCESSING -> ASSIGNED|CANCELLED
-- fence: bucket lock (id, epoch, owner, ACTIVE or COMPLETING) FOR SHARE, and the identity on the row, and a state in
--        flight. A row that is in flight here with our token + 1 and our due time was written by us: the caller takes it
--        as accepted when it reads it back. A cancel request turns ASSIGNED into CANCELLED, which keeps token and identity.
-- index: bucket_pkey for the lock, job_pkey as the arbiter
WITH b AS MATERIALIZED (
    SELECT 1 FROM bucket
    WHERE id = $1::uuid AND epoch = $2::bigint AND owner = $3::uuid AND state IN ('ACTIVE', 'COMPLETING')
    FOR SHARE
), written AS (
    INSERT INTO job AS j (id, state, priority, lane, handler, token, bucket_id, bucket_epoch, attempt, rescues, due_at,
                          args, headers)
    SELECT id, 'ASSIGNED', priority, lane, handler, token + 1, $1, $2, attempt, rescues, from_us(nullif(due_us, 0)),
           args, headers
    FROM b, unnest($4::uuid[], $5::smallint[], $6::text[], $7::text[], $8::integer[], $9::integer[], $10::integer[],
                   $11::bigint[], $12::bytea[], $13::bytea[])
         AS new (id, priority, lane, handler, token, attempt, rescues, due_us, args, headers)
    ORDER BY id
    ON CONFLICT (id) DO UPDATE
    SET state = CASE WHEN j.cancel_requested THEN 'CANCELLED'::job_state ELSE 'ASSIGNED' END,
        token = CASE WHEN j.cancel_requested THEN j.token ELSE EXCLUDED.token END,
        attempt = EXCLUDED.attempt,
        headers = CASE WHEN j.cancel_requested OR j.attempt <> EXCLUDED.attempt
                            OR is_at_most_once(j.headers) > is_at_most_once(EXCLUDED.headers)
                       THEN j.headers ELSE EXCLUDED.headers END,
        rescues = EXCLUDED.rescues,
        due_at = EXCLUDED.due_at,
        expires_at = NULL,
        changed_at = clock_timestamp(),
        error = CASE WHEN j.cancel_requested THEN
            (SELECT e.error FROM unnest($4, $14::bytea[]) AS e (id, error) WHERE e.id = EXCLUDED.id LIMIT 1) END
    WHERE j.token = EXCLUDED.token - 1
      AND j.bucket_id = EXCLUDED.bucket_id
      AND j.bucket_epoch = EXCLUDED.bucket_epoch
      AND j.state IN ('ASSIGNED', 'PROCESSING')
    RETURNING j.id, j.state
), lines AS (
    INSERT INTO attempt (job_id, token, bucket_id, bucket_epoch, outcome, ran_us, error)
    SELECT id, token, $1, $2, outcome, ran_us, error
    FROM unnest($4, $8, $15::text[], $16::bigint[], $14) AS failed (id, token, outcome, ran_us, error)
    -- IS TRUE keeps this a hashed sub-select: as a join it would be nested loops, since our sessions have no other.
    WHERE error IS NOT NULL AND (id IN (SELECT id FROM written WHERE state = 'ASSIGNED')) IS TRUE
    ORDER BY id
    ON CONFLICT DO NOTHING
)
SELECT EXISTS (SELECT FROM b) AS bucket_ok,
       coalesce(array_agg(id), '{}') AS accepted,
       coalesce(array_agg(id) FILTER (WHERE state = 'CANCELLED'), '{}') AS cancelled
FROM written
