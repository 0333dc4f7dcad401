-- insert_held: first rows of jobs that wait in the master, token 1, in no bucket
-- in: $1 uuid[] ids
-- in: $2 smallint[] priorities
-- in: $3 text[] lanes
-- in: $4 text[] handlers
-- in: $5 bytea[] args (JSON objects)
-- in: $6 bytea[] headers (JSON objects or empty)
-- in: $7 bigint[] due times in microseconds since 1970, 0 = now
-- out: accepted uuid[]
-- move: none -> HELD
-- fence: the primary key: an id that has a row is left alone and not in accepted
-- index: job_pkey, as the arbiter; each row goes to one partition
WITH written AS (
    INSERT INTO @schema.job (id, state, priority, lane, handler, token, due_at, expires_at, args, headers)
    SELECT id, 'HELD', priority, lane, handler, 1,
           coalesce(@schema.from_us(nullif(due_us, 0)), clock_timestamp()), @schema.expires_of(headers), args, headers
    FROM unnest($1::uuid[], $2::smallint[], $3::text[], $4::text[], $5::bytea[], $6::bytea[], $7::bigint[])
         AS new (id, priority, lane, handler, args, headers, due_us)
    ORDER BY id
    ON CONFLICT (id) DO NOTHING
    RETURNING id
)
SELECT coalesce(array_agg(id), '{}') AS accepted FROM written
