-- fail: an attempt of an action has failed
-- in: $1 text name
-- in: $2 text version
-- in: $3 bigint fence of its lock
-- in: $4 text error
-- out: nothing
-- move: nothing
-- fence: compare-and-set on the fencing number of the last attempt, once
-- index: once_attempt_pkey
UPDATE once_attempt SET failures = failures + 1, error = $4::text, changed_at = clock_timestamp()
WHERE name = $1::text AND version = $2::text AND fence = $3::bigint AND error IS NULL
