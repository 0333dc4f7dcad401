-- pause_backfill: the writers of a backfill write nothing more, also in runs to come
-- in: $1 text name of the backfill, or of one of its batches, or id of one of its runs
-- in: $2 text by whom
-- out: name text, paused_us bigint (microseconds since 1970), paused_by text, changed boolean (no row: there is no such backfill)
-- move: nothing
-- fence: the row's lock; a second pause changes nothing
-- index: pipeline_backfill_pkey, pipeline_write_pkey, pipeline_write_name
WITH chosen AS MATERIALIZED (
    SELECT w.name FROM pipeline_write w
    WHERE w.name = $1::text OR w.run_id = $1 OR (w.batch = $1 AND w.name IS NOT NULL)
    UNION
    SELECT b.name FROM pipeline_backfill b WHERE b.name = $1
    LIMIT 1
)
INSERT INTO pipeline_backfill AS backfill (name, paused_at, paused_by)
SELECT name, statement_timestamp(), $2::text FROM chosen WHERE name IS NOT NULL
ON CONFLICT (name) DO UPDATE
SET paused_at = coalesce(backfill.paused_at, excluded.paused_at), paused_by = coalesce(backfill.paused_by, excluded.paused_by)
RETURNING name, to_us(paused_at) AS paused_us, paused_by, paused_at = statement_timestamp() AS changed
