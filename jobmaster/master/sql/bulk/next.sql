-- next: the bulk operation that is worked on now: the oldest that has not ended
-- in: nothing
-- out: id uuid, kind text, filter json, change json, lowest uuid, highest uuid, cursor uuid,
--      ended_per_second double precision (jobs that all agents end, as they have published it in the last 30 seconds)
-- move: nothing
-- fence: none: a page compares the cursor
-- index: bulk_unended, one probe; the table of agents is small
SELECT id, kind, filter::json AS filter, change::json AS change, lowest, highest, cursor,
       (SELECT coalesce(sum((a.statistics ->> 'ended_per_second')::float8), 0) FROM agent a
        WHERE a.state IN ('ACTIVE', 'STOPPING') AND a.statistics_at > clock_timestamp() - interval '30 seconds') AS ended_per_second
FROM bulk_operation
WHERE state IN ('WAITING', 'RUNNING')
ORDER BY id
LIMIT 1
