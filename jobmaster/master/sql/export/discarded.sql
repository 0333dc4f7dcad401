-- discarded: the earliest time of jobs whose range was dropped without a copy, or of which some were forgotten
-- in: nothing
-- out: since_us bigint, NULL when there is no such range
-- move: nothing
-- fence: none; the snapshot of the caller's transaction
-- index: none; one row a range
SELECT to_us(uuid_moment(min(lo::text)::uuid)) AS since_us
FROM archive_manifest
WHERE discarded OR forgotten > 0
