-- finish_steps: outcomes of steps of workflows, as record_final writes them; the next steps stay in the bucket where that is possible
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
-- in: $18 uuid bucket
-- in: $19 bigint its epoch
-- in: $20 uuid owner
-- in: $21 text its lane
-- in: $22 smallint its priority
-- in: $23 text[] handlers the owner has, NULL = any
-- in: $24 text[] tags that are paused, NULL = none
-- in: $25 text[] capabilities the owner has, NULL = all
-- out: accepted uuid[], more boolean (further next steps are HELD that the bucket could take), id uuid (NULL: no row), token integer,
--      handler text, args bytea, due_at timestamptz, headers bytea, attempt integer, rescues integer
-- move: none|ASSIGNED|PROCESSING -> SUCCEEDED|FAILED|CANCELLED|EXPIRED
-- move: none -> WAITING|HELD
-- move: HELD -> ASSIGNED
-- fence: that of record_final; of the next steps that of onboard: the bucket's lock (id, epoch, owner, ACTIVE) FOR SHARE. It is
--        not waited for, because jobs and workflows are locked before.
-- index: job_pkey, as the arbiter and for the next steps; workflow_pkey, workflow_step_pkey; bucket_pkey
SELECT accepted, more, id, token, handler, args, due_at, headers, attempt, rescues
FROM finish_steps($1::uuid[], $2::text[], $3::smallint[], $4::text[], $5::text[], $6::integer[], $7::uuid[], $8::bigint[],
                  $9::integer[], $10::integer[], $11::bigint[], $12::bigint[], $13::bigint[], $14::bytea[], $15::bytea[],
                  $16::bytea[], $17::bytea[], $18::uuid, $19::bigint, $20::uuid, $21::text, $22::smallint, $23::text[], $24::text[],
                  $25::text[])
