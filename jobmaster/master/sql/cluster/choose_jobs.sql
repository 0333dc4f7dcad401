-- choose_jobs: jobs that can go to another master, for many pages: a scan for each page would pass all that have moved, each time
-- in: $1 integer limit
-- out: id uuid
-- move: nothing
-- fence: none, they are locked page by page. Jobs of batches and workflows are left out: these are counted and continued here
-- index: job_due for HELD, those of WAITING
SELECT id FROM (
    (SELECT id FROM job WHERE state = 'HELD' AND stays_here(id, headers) IS FALSE LIMIT $1::integer)
    UNION ALL
    (SELECT id FROM job WHERE state = 'WAITING' AND stays_here(id, headers) IS FALSE LIMIT $1)
) AS waiting
ORDER BY id
LIMIT $1
