-- note_run: records that the leader has looked for ranges past the lifetime of jobs
-- in: $1 uuid agent
-- in: $2 double precision lifetime of jobs in seconds
-- in: $3 boolean whether retired ranges are dropped
-- in: $4 text why the next range could not leave (NULL: nothing older is left)
-- out: nothing
-- move: nothing
-- fence: none; one row, the last look counts
-- index: retention_run_pkey
INSERT INTO retention_run AS r (agent_id, looked_at, after_seconds, discards, blocked)
VALUES ($1::uuid, clock_timestamp(), $2::double precision, $3::boolean, $4::text)
ON CONFLICT (only_one) DO UPDATE
SET agent_id = EXCLUDED.agent_id, looked_at = EXCLUDED.looked_at, after_seconds = EXCLUDED.after_seconds,
    discards = EXCLUDED.discards, blocked = EXCLUDED.blocked
