-- id_ranges: the ranges of ids in which the jobs of a batch or of a workflow lie, the newest first
-- in: $1 uuid batch: its id, or any id of one of its ranges; NULL: of the workflow
-- in: $2 uuid workflow; NULL: of the batch
-- out: lowest uuid, highest uuid
-- move: nothing
-- fence: none
-- index: batch_range_pkey, batch_range_batch, workflow_pkey
SELECT r.lo AS lowest, batch_range_end(r.lo) AS highest
FROM batch_range r
WHERE r.batch = (SELECT named.batch FROM batch_range named WHERE named.lo = batch_range_of($1::uuid))
UNION ALL
SELECT $2::uuid, batch_range_end($2)
FROM workflow WHERE id = $2
UNION ALL
-- Jobs that were started more than an hour after the workflow have ids of their own time.
SELECT uuid_floor(uuid_moment(id) + interval '1 hour'), uuid_floor(coalesce(ended_at, clock_timestamp()) + interval '1 hour')
FROM workflow
WHERE id = $2 AND coalesce(ended_at, clock_timestamp()) > uuid_moment(id) + interval '59 minutes'
ORDER BY lowest DESC
