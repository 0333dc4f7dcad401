-- drop: the tombstone of a bucket whose keys are gone; its id is never used again
-- in: $1 uuid bucket
-- out: id uuid
-- move: READY_TO_DELETE -> none
-- fence: compare-and-set on the state: a bucket whose keys hold jobs again is LOST by now
-- index: bucket_pkey
DELETE FROM bucket WHERE id = $1::uuid AND state = 'READY_TO_DELETE' RETURNING id
