-- ended: results and errors of some jobs
-- in: $1 uuid[] ids
-- in: $2 uuid lowest of them
-- in: $3 uuid highest of them
-- out: id uuid, state text, handler text, result bytea, error bytea
-- move: nothing
-- fence: none
-- index: job_pkey; the bounds prune partitions
SELECT id, state::text AS state, handler, result, error
FROM job_kept
WHERE id = ANY ($1::uuid[]) AND id BETWEEN $2::uuid AND $3::uuid
