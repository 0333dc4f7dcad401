-- quarantine: how much is kept there, since when, and the newest of it
-- in: nothing
-- out: kept bigint, oldest_us bigint, job_id uuid, reason text (of the newest; NULL: nothing is kept)
-- move: nothing
-- fence: none
-- index: none for the count, which retention bounds; quarantine_pkey for the newest
SELECT count(*) AS kept, (extract(epoch FROM min(at)) * 1000000)::bigint AS oldest_us,
       (SELECT job_id FROM quarantine ORDER BY seq DESC LIMIT 1) AS job_id,
       (SELECT reason FROM quarantine ORDER BY seq DESC LIMIT 1) AS reason
FROM quarantine
