-- lock_page: the rows of jobs that go to another master, locked until they are MOVED
-- in: $1 uuid[] jobs
-- out: id uuid, row_text text (JSON of the row)
-- move: nothing
-- fence: the rows, locked in the order of their ids: a cancel, an expiry or a change is committed before, or finds the job MOVED
-- index: job_pkey
SELECT id, (to_jsonb(j) || '{"recorded_xid": null}')::text AS row_text
FROM job j
WHERE id = ANY ($1::uuid[]) AND state IN ('HELD', 'WAITING')
ORDER BY id
FOR UPDATE
