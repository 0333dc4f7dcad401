-- backfills: the latest backfills, each with the books of its runs since the last one that ended
-- in: $1 text name, NULL: all
-- in: $2 integer backfills
-- out: name text, run_id text, began_us bigint, ended_us bigint (microseconds since 1970), runs bigint, total bigint, handled bigint,
--      finished bigint (of these, rows of files that earlier runs have finished), offered bigint, inserted bigint (by all these runs),
--      rejected bigint, paused boolean, driver text (host and process id), lives boolean,
--      seen_us bigint, lane text, priority smallint, backlog bigint (of the lane and priority that holds it back), resumable boolean
-- move: nothing
-- fence: none, it reads
-- index: pipeline_write_name; the tables have a row for each run, and for each task of a run that has not ended
WITH run AS MATERIALIZED (
    -- Runs that did not end belong to the next one that did.
    SELECT w.*, count(*) FILTER (WHERE w.ended_at IS NOT NULL) OVER later AS chain,
           row_number() OVER (PARTITION BY w.name ORDER BY w.began_at DESC, w.run_id) AS age
    FROM pipeline_write w
    WHERE w.name IS NOT NULL AND ($1::text IS NULL OR w.name = $1)
    WINDOW later AS (PARTITION BY w.name ORDER BY w.began_at DESC, w.run_id ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)
), newest AS MATERIALIZED (
    SELECT * FROM run WHERE age = 1 ORDER BY began_at DESC LIMIT $2::integer
), part AS MATERIALIZED (
    SELECT p.run_id, sum(p.inserted)::bigint AS inserted, sum(p.handled)::bigint AS handled,
           coalesce(sum(p.handled) FILTER (WHERE p.part = -1), 0)::bigint AS finished
    FROM pipeline_write_part p JOIN run USING (run_id) GROUP BY p.run_id
)
SELECT n.name, n.run_id, to_us(n.began_at) AS began_us, to_us(n.ended_at) AS ended_us, books.runs, n.total,
       coalesce(n.offered, mine.handled, 0) AS handled, coalesce(mine.finished, 0) AS finished, n.offered, books.inserted, n.rejected,
       b.paused_at IS NOT NULL AS paused, n.host || ' (process ' || n.pid || ')' AS driver,
       n.ended_at IS NULL AND driver_lives(n.run_id, n.seen_at) AS lives, to_us(n.seen_at) AS seen_us,
       brake.lane, brake.priority, brake.backlog, b.request IS NOT NULL AS resumable
FROM newest n
JOIN LATERAL (
    SELECT count(*) AS runs, sum(coalesce(r.inserted, p.inserted, 0))::bigint AS inserted
    FROM run r LEFT JOIN part p USING (run_id)
    WHERE r.name = n.name AND r.chain = n.chain
) AS books ON true
LEFT JOIN part mine ON mine.run_id = n.run_id
LEFT JOIN pipeline_backfill b ON b.name = n.name
LEFT JOIN LATERAL (
    SELECT k.lane, k.priority, k.backlog FROM pipeline_brake k
    WHERE k.run_id = n.run_id AND k.held_back
    ORDER BY k.backlog DESC LIMIT 1
) AS brake ON n.ended_at IS NULL
ORDER BY n.began_at DESC
