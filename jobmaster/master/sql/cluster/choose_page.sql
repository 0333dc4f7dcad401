-- choose_page: notes the next jobs that go to another master, before any of them is there
-- in: $1 integer limit
-- out: page uuid[] (no row: the cluster is not migrating, or its agents may still run jobs)
-- move: nothing
-- fence: the one row of cluster_move, in a cluster without open buckets in which every agent has renewed its lease since the mode
--        changed (the longest lease is over since, and no lease has run out without a death certificate): so no agent runs a
--        job, and none opens a bucket. Jobs of batches and workflows are left out: these are counted and continued here.
-- index: job_due for HELD, those of WAITING; bucket and agent are small
WITH quiet AS (
    SELECT 1 FROM cluster c
    WHERE c.mode = 'migrating' AND NOT EXISTS (SELECT FROM bucket WHERE state <> 'READY_TO_DELETE')
      AND NOT EXISTS (SELECT FROM agent WHERE state IN ('ACTIVE', 'STOPPING') AND lease_until < clock_timestamp())
      AND c.mode_at + make_interval(secs => coalesce((SELECT max(lease_seconds) FROM agent WHERE state IN ('ACTIVE', 'STOPPING')), 0))
          < clock_timestamp()
), chosen AS (
    SELECT id FROM (
        (SELECT id FROM job WHERE state = 'HELD' AND stays_here(id, headers) IS FALSE LIMIT $1::integer)
        UNION ALL
        (SELECT id FROM job WHERE state = 'WAITING' AND stays_here(id, headers) IS FALSE LIMIT $1)
    ) AS waiting
    LIMIT $1
)
UPDATE cluster_move SET page = (SELECT coalesce(array_agg(id ORDER BY id), '{}') FROM chosen) FROM quiet RETURNING page
