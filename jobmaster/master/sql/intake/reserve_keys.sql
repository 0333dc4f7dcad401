-- reserve_keys: idempotency keys for their jobs, unless another job holds them
-- in: $1 text scope (the handler's name)
-- in: $2 text[] keys
-- in: $3 uuid[] jobs
-- in: $4 bytea[] digests of the payloads
-- out: nothing
-- move: nothing
-- fence: the primary key (scope, key); the holders are read by a second statement, whose snapshot shows the winner
-- index: idempotency_pkey, as the arbiter
INSERT INTO idempotency (scope, key, job_id, digest)
SELECT $1::text, key, job_id, digest
FROM unnest($2::text[], $3::uuid[], $4::bytea[]) AS new (key, job_id, digest)
ORDER BY key
ON CONFLICT (scope, key) DO NOTHING
