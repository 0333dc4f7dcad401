-- release: an operator takes a unique key from the job that holds it; the job itself goes on
-- in: $1 text handler
-- in: $2 text key
-- in: $3 text the actor
-- out: job_id uuid (no row: no such key)
-- move: nothing
-- fence: the row of the key is deleted under its lock, as submit_unique takes it
-- index: unique_key_pkey
WITH released AS (
    DELETE FROM unique_key WHERE handler = $1::text AND key = $2::text
    RETURNING handler, key, job_id
), noted AS (
    INSERT INTO operator_log (actor, action, subject, detail)
    SELECT $3::text, 'unique release', handler, jsonb_build_object('key', key, 'job', job_id) FROM released
)
SELECT job_id FROM released
