-- results: outcomes of one handler's jobs, by id
-- in: $1 text handler, $2 uuid after this id, $3 int rows
-- out: id uuid, state text, args bytea, result bytea, error bytea, rescues integer
-- move: nothing
-- fence: none
-- index: primary key of job from $2 on
SELECT id, state::text AS state, args, result, error, rescues
FROM job_kept
WHERE id > $2::uuid AND handler = $1::text
ORDER BY id
LIMIT $3::int
