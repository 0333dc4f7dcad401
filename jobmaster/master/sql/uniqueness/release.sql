-- release: an operator takes a unique key from the job that holds it; the job itself goes on
-- in: $1 text handler
-- in: $2 text key
-- in: $3 text the actor
-- out: handler text, key text, job_id uuid, term text, held_us bigint, until_us bigint (as they were; no row: no such key)
-- move: nothing
-- fence: the row of the key is deleted under its lock, as submit_unique takes it
-- index: unique_key_pkey
WITH released AS (
    DELETE FROM unique_key WHERE handler = $1::text AND key = $2::text
    RETURNING handler, key, job_id, term, to_us(held_at) AS held_us, to_us(until) AS until_us
), noted AS (
    INSERT INTO operator_log (actor, action, subject, detail)
    SELECT $3::text, 'unique release', handler, jsonb_build_object('key', key, 'job', job_id) FROM released
)
SELECT handler, key, job_id, term, held_us, until_us FROM released
