-- backlog: how much waits in the master, where further jobs wait in stores, and how many jobs may run at once
-- in: $1 integer jobs of each lane and priority that are counted: the due ones and the others, so many of each at most
-- out: lanes text[], priorities smallint[], due bigint[], later bigint[], oldest_seconds double precision[] (0: none is due),
--      buckets uuid[], stores text[], bucket_lanes text[], bucket_priorities smallint[], owners uuid[], active boolean[],
--      agents uuid[], slots integer[]
-- move: nothing
-- fence: none: figures for people and autoscalers
-- index: job_due, for each group of HELD jobs one probe and at most 2 x $1 entries of the index; ORDER BY keeps the planner from
--        reading whole partitions for few jobs. The tables of agents and buckets are small
WITH RECURSIVE groups AS (
    (SELECT lane, priority FROM job WHERE state = 'HELD' ORDER BY lane DESC, priority DESC, due_at DESC LIMIT 1)
    UNION ALL
    SELECT next.lane, next.priority
    FROM groups g, LATERAL (
        SELECT lane, priority FROM job
        WHERE state = 'HELD' AND (lane, priority) < (g.lane, g.priority)
        ORDER BY lane DESC, priority DESC, due_at DESC LIMIT 1
    ) AS next
), held AS MATERIALIZED (
    SELECT g.lane, g.priority, due.jobs AS due, later.jobs AS later,
           greatest(coalesce(extract(epoch FROM statement_timestamp() - due.oldest), 0), 0)::double precision AS oldest_seconds
    FROM groups g, LATERAL (
        SELECT count(*) AS jobs, min(counted.due_at) AS oldest FROM (
            SELECT j.due_at FROM job j
            WHERE j.state = 'HELD' AND j.lane = g.lane AND j.priority = g.priority AND j.due_at <= statement_timestamp()
            ORDER BY j.due_at LIMIT $1::integer
        ) AS counted
    ) AS due, LATERAL (
        SELECT count(*) AS jobs FROM (
            SELECT j.due_at FROM job j
            WHERE j.state = 'HELD' AND j.lane = g.lane AND j.priority = g.priority AND j.due_at > statement_timestamp()
            ORDER BY j.due_at LIMIT $1
        ) AS counted
    ) AS later
), filled AS MATERIALIZED (
    SELECT id, store, lane, priority, owner, state = 'ACTIVE' AS active FROM bucket WHERE state <> 'READY_TO_DELETE'
), alive AS MATERIALIZED (
    SELECT id, slots FROM agent WHERE state = 'ACTIVE' AND NOT drain_requested AND lease_until > statement_timestamp()
)
SELECT held.lanes, held.priorities, held.due, held.later, held.oldest_seconds,
       filled.buckets, filled.stores, filled.bucket_lanes, filled.bucket_priorities, filled.owners, filled.active,
       alive.agents, alive.slots
FROM (
    SELECT coalesce(array_agg(lane), '{}') AS lanes, coalesce(array_agg(priority), '{}') AS priorities,
           coalesce(array_agg(due), '{}') AS due, coalesce(array_agg(later), '{}') AS later,
           coalesce(array_agg(oldest_seconds), '{}') AS oldest_seconds
    FROM held
) AS held, (
    SELECT coalesce(array_agg(id), '{}') AS buckets, coalesce(array_agg(store), '{}') AS stores,
           coalesce(array_agg(lane), '{}') AS bucket_lanes, coalesce(array_agg(priority), '{}') AS bucket_priorities,
           coalesce(array_agg(owner), '{}') AS owners, coalesce(array_agg(active), '{}') AS active
    FROM filled
) AS filled, (
    SELECT coalesce(array_agg(id), '{}') AS agents, coalesce(array_agg(slots), '{}') AS slots FROM alive
) AS alive
