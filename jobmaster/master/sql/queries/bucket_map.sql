-- bucket_map: what has changed in the map of buckets since a version of it; all of it where that version cannot be continued
-- in: $1 bigint server of the version (NULL: there is none)
-- in: $2 bigint horizon of the version
-- out: server bigint, horizon bigint, whole boolean (one row with the new version, the others NULL there), id uuid, store text,
--      lane text, priority smallint, state text, epoch bigint, owner uuid (a bucket in a row), owners uuid[], handlers text[] (NULL: these
--      agents have ended), share double precision, capabilities text[] (agents that are alike in a row)
-- move: nothing
-- fence: none on rows: nothing depends on a fresh map. The horizon is a transaction below which every other one has ended, never
--        one above the highest seen: numbers are assigned in one order and committed in another, and a change that was committed
--        late would be passed over for ever. Nor does it pass the last change that is committed: the numbers of transactions
--        that left nothing in the log are assigned again after a crash. Version and rows are of one snapshot. The floor is above
--        each row that was deleted, and the server is named by its start, so a standby that takes over is another one.
-- index: bucket_changed, agent_changed, each from its end and from the horizon on
WITH now AS MATERIALIZED (
    SELECT (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint AS server,
           pg_snapshot_xmin(pg_current_snapshot())::text::bigint AS running,
           greatest((SELECT max(changed_xid) + 1 FROM bucket), (SELECT max(changed_xid) + 1 FROM agent), xid) AS changed,
           xid AS floor
    FROM bucket_map_floor
), version AS MATERIALIZED (
    SELECT server, least(running, changed) AS horizon,
           CASE WHEN server = $1::bigint AND $2::bigint BETWEEN floor AND running THEN $2::bigint END AS since
    FROM now
)
SELECT server, horizon, since IS NULL AS whole, NULL::uuid AS id, NULL AS store, NULL AS lane, NULL::smallint AS priority,
       NULL AS state, NULL::bigint AS epoch, NULL::uuid AS owner, NULL::uuid[] AS owners, NULL::text[] AS handlers,
       NULL::double precision AS share, NULL::text[] AS capabilities
FROM version
UNION ALL
SELECT NULL, NULL, NULL, id, store, lane, priority, state::text, epoch, owner, NULL, NULL, NULL, NULL
FROM bucket
WHERE changed_xid >= (SELECT coalesce(since, 0) FROM version)
UNION ALL
SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, array_agg(id), handlers, share, capabilities
FROM agent
WHERE changed_xid >= (SELECT coalesce(since, 0) FROM version) AND state IN ('ACTIVE', 'STOPPING')
GROUP BY handlers, share, capabilities
UNION ALL
SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, array_agg(id), NULL, NULL, NULL
FROM agent
WHERE changed_xid >= (SELECT since FROM version) AND state IN ('DEAD', 'RETIRED')
HAVING count(*) > 0
