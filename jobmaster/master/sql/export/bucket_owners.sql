-- bucket_owners: the agent that acted for a bucket under an epoch
-- in: nothing
-- out: bucket_id uuid, bucket_epoch bigint, agent text
-- move: nothing
-- fence: none
-- index: none; events of buckets are few
SELECT bucket_id, bucket_epoch, agent FROM bucket_owners
