-- next: the bulk operation that is worked on now: the oldest that has not ended
-- in: nothing
-- out: id uuid, kind text, filter json, change json, lowest uuid, highest uuid, cursor uuid
-- move: nothing
-- fence: none: a page compares the cursor
-- index: bulk_unended, one probe
SELECT id, kind, filter::json AS filter, change::json AS change, lowest, highest, cursor
FROM bulk_operation
WHERE state IN ('WAITING', 'RUNNING')
ORDER BY id
LIMIT 1
