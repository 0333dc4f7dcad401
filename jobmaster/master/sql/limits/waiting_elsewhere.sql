-- waiting_elsewhere: buckets of other agents in which a job was denied a permit of these limits not long ago
-- in: $1 uuid the agent that asks
-- in: $2 text[] limits
-- in: $3 text[] keys
-- in: $4 double precision how long ago, seconds (jobs that still wait have asked again since)
-- out: id uuid, store text
-- move: nothing
-- fence: none; the answer leads to hints
-- index: limit_state_pkey, bucket_pkey
SELECT DISTINCT b.id, b.store
FROM unnest($2::text[], $3::text[]) AS freed (name, key)
CROSS JOIN LATERAL (
    SELECT s.waiting_bucket, s.waiting_at FROM limit_state s WHERE s.name = freed.name AND s.key = freed.key OFFSET 0
) AS state
JOIN bucket b ON b.id = state.waiting_bucket
WHERE state.waiting_at > clock_timestamp() - make_interval(secs => $4::double precision)
  AND b.owner <> $1::uuid
  AND b.state = 'ACTIVE'
