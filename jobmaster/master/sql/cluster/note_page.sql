-- note_page: notes the next jobs that go to another master, before any of them is there
-- in: $1 uuid[] jobs, or none: whether the cluster is quiet
-- out: page uuid[] (no row: the cluster is not migrating, or its agents may still run jobs)
-- move: nothing
-- fence: the one row of cluster_move, in a cluster without open buckets in which every agent has renewed its lease since the mode
--        changed (the longest lease is over since, and no lease has run out without a death certificate): so no agent runs a
--        job, and none opens a bucket
-- index: cluster_move_pkey; bucket and agent are small
UPDATE cluster_move SET page = $1::uuid[]
FROM cluster c
WHERE c.mode = 'migrating' AND NOT EXISTS (SELECT FROM bucket WHERE state <> 'READY_TO_DELETE')
  AND NOT EXISTS (SELECT FROM agent WHERE state IN ('ACTIVE', 'STOPPING') AND lease_until < clock_timestamp())
  AND c.mode_at + make_interval(secs => coalesce((SELECT max(lease_seconds) FROM agent WHERE state IN ('ACTIVE', 'STOPPING')), 0))
      < clock_timestamp()
RETURNING page
