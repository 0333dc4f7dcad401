-- read_page: the rows of jobs that go to another master, and what lies beside them
-- in: $1 uuid[] jobs, locked by this transaction
-- out: table_name text, row_text text (JSON of the row)
-- move: nothing
-- fence: none; the rows of the jobs are locked
-- index: job_pkey, attempt_pkey, put_off_pkey
SELECT 'job' AS table_name, (to_jsonb(j) || '{"recorded_xid": null}')::text AS row_text FROM job j WHERE j.id = ANY ($1::uuid[])
UNION ALL
SELECT 'attempt', (to_jsonb(a) || '{"recorded_xid": null}')::text FROM attempt a WHERE a.job_id = ANY ($1)
UNION ALL
SELECT 'put_off', to_jsonb(p)::text FROM put_off p WHERE p.job_id = ANY ($1)
