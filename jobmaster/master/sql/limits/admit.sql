-- admit: rows of jobs with limits that are about to start; those for which every limit has a permit may
-- in: $1 uuid bucket
-- in: $2 bigint its epoch
-- in: $3 uuid owner
-- in: $4 uuid[] ids
-- in: $5 text[] states, all PROCESSING
-- in: $6 smallint[] priorities
-- in: $7 text[] lanes
-- in: $8 text[] handlers
-- in: $9 integer[] tokens
-- in: $10 integer[] attempts used up
-- in: $11 integer[] rescues
-- in: $12 bigint[] due times in microseconds since 1970, 0 = at once
-- in: $13 bytea[] args
-- in: $14 bytea[] headers
-- in: $15 double precision[] not used: a job with a limit has no complete_time
-- in: $16 integer[] of each use of a limit: the place of its job in the arrays above, from 1, in order
-- in: $17 text[] limits
-- in: $18 text[] keys
-- in: $19 integer[] weights
-- out: bucket_ok boolean, accepted uuid[], denied uuid[] (no permit: nothing of theirs is written), limits text[] (the full one of each), keys text[], waits double precision[] (seconds until a permit may be free, 0: unknown)
-- move: none|ASSIGNED|PROCESSING -> PROCESSING
-- fence: as outcomes/persist. The function locks the keys of the limits in order, and counts in a later command with a snapshot
--        of its own: a count in the statement that locks would be of the moment before the wait, and two agents could take the
--        last permit. A permit is valid while the row has the token and is PROCESSING; so one that was taken here for a row that
--        refuses the write frees itself.
-- index: bucket_pkey for the lock, limit_state_pkey, permit_pkey, job_of_ordering_key, job_pkey for each job, for each permit when a limit is nearly full, and as the arbiter
WITH b AS MATERIALIZED (
    SELECT 1 FROM bucket
    WHERE id = $1::uuid AND epoch = $2::bigint AND owner = $3::uuid AND state IN ('ACTIVE', 'COMPLETING')
    FOR SHARE
), answer AS MATERIALIZED (
    SELECT id, limit_name, limit_key, wait_seconds
    FROM take_permits(CASE WHEN EXISTS (SELECT FROM b) THEN $4::uuid[] END, $9::integer[], $16::integer[], $17::text[],
                      $18::text[], $19::integer[], $1)
), written AS (
    INSERT INTO job AS j (id, state, priority, lane, handler, token, bucket_id, bucket_epoch, attempt, rescues, due_at,
                          args, headers)
    SELECT new.id, new.state::job_state, new.priority, new.lane, new.handler, new.token, $1, $2, new.attempt, new.rescues,
           from_us(nullif(new.due_us, 0)), new.args, new.headers
    FROM unnest($4, $5::text[], $6::smallint[], $7::text[], $8::text[], $9, $10::integer[], $11::integer[], $12::bigint[],
                $13::bytea[], $14::bytea[], $15::double precision[])
         AS new (id, state, priority, lane, handler, token, attempt, rescues, due_us, args, headers, late_seconds)
    -- NOT IN is hashed. A join would compare every row with every answer: joins by hash are off in our sessions.
    WHERE EXISTS (SELECT FROM b) AND new.id NOT IN (SELECT answer.id FROM answer WHERE answer.limit_name IS NOT NULL)
    ORDER BY new.id
    ON CONFLICT (id) DO UPDATE
    SET state = 'PROCESSING',
        headers = CASE WHEN is_at_most_once(j.headers) THEN j.headers ELSE EXCLUDED.headers END,
        changed_at = clock_timestamp()
    WHERE j.token = EXCLUDED.token
      AND j.bucket_id = EXCLUDED.bucket_id
      AND j.bucket_epoch = EXCLUDED.bucket_epoch
      AND j.state IN ('ASSIGNED', 'PROCESSING')
      AND NOT j.cancel_requested
    RETURNING j.id
), denied AS (
    SELECT coalesce(array_agg(id ORDER BY id), '{}') AS ids, coalesce(array_agg(limit_name ORDER BY id), '{}') AS limits,
           coalesce(array_agg(limit_key ORDER BY id), '{}') AS keys, coalesce(array_agg(wait_seconds ORDER BY id), '{}') AS waits
    FROM answer WHERE limit_name IS NOT NULL
)
SELECT EXISTS (SELECT FROM b) AS bucket_ok, coalesce((SELECT array_agg(id) FROM written), '{}') AS accepted,
       denied.ids AS denied, denied.limits, denied.keys, denied.waits
FROM denied
