-- report_driver: the driver of a run of writing is alive; its session holds a lock for as long as it lives
-- in: $1 text run id
-- in: $2 text host
-- in: $3 integer process id
-- in: $4 bigint rows that are expected, NULL: unknown
-- out: alive boolean (false: the run has another driver; no row: the run has not begun)
-- move: nothing
-- fence: advisory lock of the session; taken again by the same session it changes nothing
-- index: pipeline_write_pkey
UPDATE pipeline_write
SET host = $2::text, pid = $3::integer, total = $4::bigint, seen_at = clock_timestamp()
WHERE run_id = $1::text
RETURNING pg_try_advisory_lock(hashtext('jobmaster driver ' || current_schema() || ' ' || $1), 0) AS alive
