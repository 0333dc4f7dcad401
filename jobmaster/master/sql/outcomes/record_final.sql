-- record_final: outcomes of jobs, whether or not they have a row yet
-- in: $1 uuid[] ids
-- in: $2 text[] final states
-- in: $3 smallint[] priorities
-- in: $4 text[] lanes
-- in: $5 text[] handlers
-- in: $6 integer[] tokens
-- in: $7 uuid[] buckets
-- in: $8 bigint[] bucket epochs
-- in: $9 integer[] attempts used up
-- in: $10 integer[] rescues
-- in: $11 bigint[] due times in microseconds since 1970, 0 = at once
-- in: $12 bigint[] waited, microseconds
-- in: $13 bigint[] ran, microseconds
-- in: $14 bytea[] args
-- in: $15 bytea[] headers
-- in: $16 bytea[] results (JSON)
-- in: $17 bytea[] errors (JSON)
-- out: accepted uuid[]
-- move: none|ASSIGNED|PROCESSING -> SUCCEEDED|FAILED|CANCELLED|EXPIRED
-- fence: identity (token, bucket, epoch) on the row and a state in flight; no bucket lock: a superseded owner may still
--        finish a job whose row no other agent has moved. A cancel request does not undo an outcome that happened.
-- index: job_pkey, as the arbiter; the new version is in no other index
WITH written AS (
    INSERT INTO @schema.job AS j (id, state, priority, lane, handler, token, bucket_id, bucket_epoch, attempt, rescues, due_at,
                          waited_us, ran_us, args, headers, result, error)
    SELECT id, state::@schema.job_state, priority, lane, handler, token, bucket_id, bucket_epoch, attempt, rescues,
           @schema.from_us(nullif(due_us, 0)), waited_us, ran_us, args, headers, result, error
    FROM unnest($1::uuid[], $2::text[], $3::smallint[], $4::text[], $5::text[], $6::integer[], $7::uuid[], $8::bigint[],
                $9::integer[], $10::integer[], $11::bigint[], $12::bigint[], $13::bigint[], $14::bytea[], $15::bytea[],
                $16::bytea[], $17::bytea[])
         AS new (id, state, priority, lane, handler, token, bucket_id, bucket_epoch, attempt, rescues, due_us,
                 waited_us, ran_us, args, headers, result, error)
    ORDER BY id
    ON CONFLICT (id) DO UPDATE
    SET state = EXCLUDED.state, attempt = EXCLUDED.attempt, rescues = EXCLUDED.rescues, expires_at = NULL,
        changed_at = clock_timestamp(),
        waited_us = EXCLUDED.waited_us, ran_us = EXCLUDED.ran_us, result = EXCLUDED.result, error = EXCLUDED.error
    WHERE j.token = EXCLUDED.token
      AND j.bucket_id = EXCLUDED.bucket_id
      AND j.bucket_epoch = EXCLUDED.bucket_epoch
      AND j.state IN ('ASSIGNED', 'PROCESSING')
    RETURNING j.id
)
SELECT coalesce(array_agg(id), '{}') AS accepted FROM written
