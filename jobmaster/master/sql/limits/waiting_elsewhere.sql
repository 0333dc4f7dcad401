-- waiting_elsewhere: buckets of other agents in which a job was denied a permit of these limits not long ago; of an ordering
--                    key the one in which the next job waits
-- in: $1 uuid the agent that asks
-- in: $2 text[] limits; '' for an ordering key
-- in: $3 text[] keys
-- in: $4 double precision how long ago, seconds (jobs that still wait have asked again since)
-- out: id uuid, store text
-- move: nothing
-- fence: none; the answer leads to hints
-- index: limit_state_pkey, bucket_pkey; job_of_ordering_key, one probe a partition for each ordering key of which a job waits
SELECT DISTINCT b.id, b.store
FROM unnest($2::text[], $3::text[]) AS freed (name, key)
CROSS JOIN LATERAL (
    SELECT CASE WHEN freed.name <> '' THEN s.waiting_bucket ELSE (
               -- Whichever agent was denied last: only the earliest unfinished job of the key can start.
               SELECT CASE WHEN first.state = 'ASSIGNED' THEN first.bucket_id END
               FROM (SELECT j.state, j.bucket_id FROM job j
                     WHERE position('],"ordering_key":"'::bytea IN j.headers) > 0
                       AND ordering_key(j.headers) = signal_key_form(freed.key)
                       AND j.state IN ('HELD', 'ASSIGNED', 'PROCESSING', 'WAITING')
                     ORDER BY j.id LIMIT 1) AS first
           ) END AS bucket
    FROM limit_state s
    WHERE s.name = freed.name AND s.key = freed.key
      AND s.waiting_at > clock_timestamp() - make_interval(secs => $4::double precision)
    OFFSET 0
) AS state
JOIN bucket b ON b.id = state.bucket
WHERE b.owner <> $1::uuid
  AND b.state = 'ACTIVE'
