-- measure_backlog: counts the backlog of a lane and priority for the tasks of a run, unless another task has done so just now
-- in: $1 text run id
-- in: $2 text lane
-- in: $3 smallint priority
-- in: $4 bigint jobs at which the run is held back
-- in: $5 bigint jobs at which it goes on
-- in: $6 double precision seconds for which a count is not repeated
-- out: backlog bigint, held_back boolean (no row: another task has counted)
-- move: nothing
-- fence: the row's lock: of several tasks one counts, the others find its count
-- index: pipeline_brake_pkey; job_due, at most $4 + 1 entries; job_by_bucket, the ASSIGNED jobs of the buckets of that lane and priority
WITH counted AS MATERIALIZED (
    SELECT (
        SELECT count(*) FROM (
            SELECT FROM job j
            WHERE j.state = 'HELD' AND j.lane = $2::text AND j.priority = $3::smallint AND j.due_at <= statement_timestamp()
            ORDER BY j.due_at LIMIT $4::bigint + 1
        ) AS due
    ) + (
        SELECT count(*) FROM bucket b JOIN job j ON j.bucket_id = b.id
        WHERE b.lane = $2 AND b.priority = $3 AND b.state <> 'READY_TO_DELETE' AND j.state = 'ASSIGNED'
    ) AS backlog
    WHERE NOT EXISTS (
        SELECT FROM pipeline_brake k
        WHERE k.run_id = $1::text AND k.lane = $2 AND k.priority = $3
          AND k.measured_at > clock_timestamp() - make_interval(secs => $6::double precision)
    )
)
INSERT INTO pipeline_brake AS brake (run_id, lane, priority, room, backlog, held_back, measured_at)
SELECT $1, $2, $3, $4 - backlog, backlog, backlog >= $4, clock_timestamp() FROM counted
ON CONFLICT (run_id, lane, priority) DO UPDATE
SET room = excluded.room, backlog = excluded.backlog, measured_at = excluded.measured_at,
    held_back = CASE WHEN excluded.backlog >= $4 THEN true WHEN excluded.backlog <= $5::bigint THEN false ELSE brake.held_back END
WHERE brake.measured_at <= clock_timestamp() - make_interval(secs => $6)
RETURNING backlog, held_back
