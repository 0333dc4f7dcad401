-- stop_helping: an agent has had no work for long in a bucket that it opened on request
-- in: $1 uuid agent
-- in: $2 text lane
-- in: $3 smallint priority
-- out: handler text
-- move: nothing
-- fence: only its own; a request that went to another agent meanwhile stays
-- index: bucket_request_pkey
DELETE FROM bucket_request
WHERE agent_id = $1::uuid AND lane = $2::text AND priority = $3::smallint
RETURNING handler
