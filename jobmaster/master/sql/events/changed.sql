-- changed: jobs that agents have published as changed, as their rows show them now
-- in: $1 uuid[] jobs
-- in: $2 uuid lowest of them
-- in: $3 uuid highest of them
-- out: id uuid, state text, at timestamptz, handler text, lane text, priority smallint, attempt integer, token integer,
--      bucket_id uuid, waited_us bigint, ran_us bigint, headers bytea, error bytea
-- move: nothing
-- fence: none
-- index: job_pkey
SELECT id, state::text AS state, changed_at AS at, handler, lane, priority, attempt, token, bucket_id, waited_us, ran_us, headers,
       error
FROM job
WHERE id = ANY ($1::uuid[]) AND id BETWEEN $2::uuid AND $3::uuid
