-- run_progress: how far a run of writing is
-- in: $1 text run id
-- out: inserted bigint, handled bigint (rows that its tasks have read), paused boolean, lane text, priority smallint, backlog bigint
--      (of the lane and priority that holds it back; NULL: none does)
-- move: nothing
-- fence: none, it reads
-- index: pipeline_write_pkey, pipeline_write_part_pkey, pipeline_backfill_pkey, pipeline_brake_pkey
SELECT part.inserted, part.handled,
       EXISTS (
           SELECT FROM pipeline_write w JOIN pipeline_backfill b ON b.name = w.name
           WHERE w.run_id = $1::text AND b.paused_at IS NOT NULL
       ) AS paused,
       brake.lane, brake.priority, brake.backlog
FROM (
    SELECT coalesce(sum(inserted), 0)::bigint AS inserted, coalesce(sum(handled), 0)::bigint AS handled
    FROM pipeline_write_part WHERE run_id = $1
) AS part
LEFT JOIN LATERAL (
    SELECT k.lane, k.priority, k.backlog FROM pipeline_brake k
    WHERE k.run_id = $1 AND k.held_back
    ORDER BY k.backlog DESC LIMIT 1
) AS brake ON true
