-- key_holders: which jobs hold some idempotency keys
-- in: $1 text scope (the handler's name)
-- in: $2 text[] keys
-- out: key text, job_id uuid, digest bytea
-- move: nothing
-- fence: none
-- index: idempotency_pkey
SELECT key, job_id, digest FROM idempotency WHERE scope = $1::text AND key = ANY ($2::text[])
