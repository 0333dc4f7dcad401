-- retire: an agent that leaves with nothing behind
-- in: $1 uuid agent
-- in: $2 text reason
-- out: id uuid
-- move: ACTIVE|STOPPING -> RETIRED
-- fence: runs after members/lock in one transaction, so that its snapshot shows every bucket made before. Any agent may take
--        a LOST bucket: an agent that gave one back need not wait for that.
-- index: agent_pkey, bucket_owner
UPDATE agent
SET state = 'RETIRED', ended_at = clock_timestamp(), ended_reason = $2::text
WHERE id = $1::uuid AND state IN ('ACTIVE', 'STOPPING')
  AND NOT EXISTS (SELECT FROM bucket WHERE owner = $1 AND state NOT IN ('READY_TO_DELETE', 'LOST'))
RETURNING id
