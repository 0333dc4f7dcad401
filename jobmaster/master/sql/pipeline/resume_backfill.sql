-- resume_backfill: the writers of a backfill may write again
-- in: $1 text name of the backfill, or of one of its batches, or id of one of its runs
-- out: name text, request text, was_paused boolean, living text (host and process id of its driver; NULL: no driver lives)
-- move: nothing
-- fence: the row's lock
-- index: pipeline_backfill_pkey, pipeline_write_pkey, pipeline_write_name
WITH chosen AS MATERIALIZED (
    SELECT w.name FROM pipeline_write w
    WHERE w.name = $1::text OR w.run_id = $1 OR (w.batch = $1 AND w.name IS NOT NULL)
    UNION
    SELECT b.name FROM pipeline_backfill b WHERE b.name = $1
    LIMIT 1
), before AS MATERIALIZED (
    SELECT b.name, b.paused_at FROM pipeline_backfill b JOIN chosen USING (name) FOR UPDATE OF b
)
UPDATE pipeline_backfill AS backfill
SET paused_at = NULL, paused_by = NULL
FROM before
WHERE backfill.name = before.name
RETURNING backfill.name, backfill.request, before.paused_at IS NOT NULL AS was_paused, (
    SELECT w.host || ' (process ' || w.pid || ')' FROM pipeline_write w
    WHERE w.name = before.name AND w.ended_at IS NULL AND driver_lives(w.run_id, w.seen_at)
    ORDER BY w.began_at DESC LIMIT 1
) AS living
