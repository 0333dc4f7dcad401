-- assign_copy: a job that lies in its bucket alone gets a row under the identity of that copy, so that the copy can be recalled
-- in: $1 uuid bucket
-- in: $2 bigint its epoch
-- in: $3 uuid[] ids
-- in: $4 smallint[] priorities
-- in: $5 text[] lanes
-- in: $6 text[] handlers
-- in: $7 integer[] tokens of the copies
-- in: $8 integer[] attempts used up
-- in: $9 integer[] rescues
-- in: $10 bigint[] due times in microseconds since 1970, 0 = at once
-- in: $11 bytea[] args
-- in: $12 bytea[] headers
-- out: bucket_ok boolean, accepted uuid[]
-- move: none -> ASSIGNED
-- fence: bucket lock (id, epoch, ACTIVE) FOR SHARE; the primary key: an id that has a row is left alone. The row has the
--        identity of the copy, so a copy that is claimed and run all the same is recorded as ever, and a client that dies here
--        has changed nothing.
-- index: bucket_pkey for the lock, job_pkey as the arbiter
WITH b AS MATERIALIZED (
    SELECT 1 FROM bucket WHERE id = $1::uuid AND epoch = $2::bigint AND state = 'ACTIVE' FOR SHARE
), written AS (
    INSERT INTO job (id, state, priority, lane, handler, token, bucket_id, bucket_epoch, attempt, rescues, due_at, args, headers)
    SELECT id, 'ASSIGNED', priority, lane, handler, token, $1, $2, attempt, rescues, from_us(nullif(due_us, 0)), args, headers
    FROM b, unnest($3::uuid[], $4::smallint[], $5::text[], $6::text[], $7::integer[], $8::integer[], $9::integer[],
                   $10::bigint[], $11::bytea[], $12::bytea[])
         AS new (id, priority, lane, handler, token, attempt, rescues, due_us, args, headers)
    ORDER BY id
    ON CONFLICT (id) DO NOTHING
    RETURNING id
)
SELECT EXISTS (SELECT FROM b) AS bucket_ok, coalesce(array_agg(id), '{}') AS accepted FROM written
