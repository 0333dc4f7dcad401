-- insert_assigned: first rows of jobs that are due now, already assigned to a bucket with token 2
-- in: $1 uuid bucket
-- in: $2 bigint its epoch
-- in: $3 uuid[] ids
-- in: $4 smallint[] priorities
-- in: $5 text[] lanes
-- in: $6 text[] handlers
-- in: $7 bytea[] args (JSON objects)
-- in: $8 bytea[] headers (JSON objects or empty)
-- in: $9 bigint[] due times in microseconds since 1970, 0 = at once
-- out: bucket_ok boolean, accepted uuid[]
-- move: none -> ASSIGNED
-- fence: bucket lock (id, epoch, ACTIVE), held FOR SHARE until the rows are committed; a sub-select would not be re-read
-- index: bucket_pkey for the lock, job_pkey as the arbiter
WITH b AS MATERIALIZED (
    SELECT 1 FROM bucket WHERE id = $1::uuid AND epoch = $2::bigint AND state = 'ACTIVE' FOR SHARE
), written AS (
    INSERT INTO job (id, state, priority, lane, handler, token, bucket_id, bucket_epoch, due_at, args, headers)
    SELECT id, 'ASSIGNED', priority, lane, handler, 2, $1, $2, from_us(nullif(due_us, 0)), args, headers
    FROM b, unnest($3::uuid[], $4::smallint[], $5::text[], $6::text[], $7::bytea[], $8::bytea[], $9::bigint[])
         AS new (id, priority, lane, handler, args, headers, due_us)
    ORDER BY id
    ON CONFLICT (id) DO NOTHING
    RETURNING id
)
SELECT EXISTS (SELECT FROM b) AS bucket_ok, coalesce(array_agg(id), '{}') AS accepted FROM written
