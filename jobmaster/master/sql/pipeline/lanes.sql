-- lanes: lanes that some agent serves, or has a bucket for
-- in: nothing
-- out: lane text
-- move: nothing
-- fence: none, it reads
-- index: none, both tables are small
SELECT lane FROM bucket WHERE state <> 'READY_TO_DELETE'
UNION
SELECT unnest(lanes) FROM agent WHERE state IN ('ACTIVE', 'STOPPING')
