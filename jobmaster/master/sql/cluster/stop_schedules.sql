-- stop_schedules: schedules fire here no more, and what they were goes to another cluster
-- in: $1 text the actor, by whom they are paused here
-- out: row_text text (JSON of each that was stopped, as it was)
-- move: nothing
-- fence: the rows: a leader that decides a fire at this moment has decided it before, or finds the schedule paused
-- index: schedule_pkey; the table is small
WITH found AS MATERIALIZED (
    SELECT * FROM schedule WHERE retired_at IS NULL AND paused_by <> $1::text ORDER BY name FOR UPDATE
), stopped AS (
    UPDATE schedule s
    SET paused_at = clock_timestamp(), paused_by = $1, paused_reason = (to_jsonb(f))::text, decide_at = NULL
    FROM found f WHERE s.name = f.name
    RETURNING s.paused_reason
)
SELECT paused_reason AS row_text FROM stopped
UNION ALL
SELECT paused_reason FROM schedule WHERE paused_by = $1 AND retired_at IS NULL
