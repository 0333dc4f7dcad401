-- archived: ranges whose jobs are in the lake alone
-- in: nothing
-- out: name text, lake text, format integer, run_id text, files text (JSON), first_us bigint, last_us bigint
-- move: nothing
-- fence: none; the snapshot of the caller's transaction
-- index: none; one row a range
SELECT name, lake, format, run_id, files::text AS files, to_us(uuid_moment(lo)) AS first_us,
       to_us(coalesce(ended_to, uuid_moment(hi))) AS last_us
FROM archive_manifest
WHERE state = 'DROPPED' AND NOT discarded
ORDER BY lo, name
