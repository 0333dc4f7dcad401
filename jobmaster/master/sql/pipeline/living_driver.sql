-- living_driver: the driver that writes the rows of a name at this moment
-- in: $1 text name of the backfill
-- out: driver text (host and process id), run_id text (no row: none lives; of the run of a user's program that is unknown)
-- move: nothing
-- fence: none, it reads
-- index: pipeline_write_name
SELECT host || ' (process ' || pid || ')' AS driver, run_id FROM pipeline_write
WHERE name = $1::text AND ended_at IS NULL AND driver_lives(run_id, seen_at)
ORDER BY began_at DESC
LIMIT 1
