-- read_beside: what lies beside the rows of jobs and goes with them
-- in: $1 uuid[] jobs
-- out: attempts text, put_off text (JSON arrays of rows)
-- move: nothing
-- fence: none; the rows of the jobs are locked
-- index: attempt_pkey, put_off_pkey
SELECT coalesce((SELECT jsonb_agg(to_jsonb(a) || '{"recorded_xid": null}') FROM attempt a WHERE a.job_id = ANY ($1::uuid[])),
                '[]')::text AS attempts,
       coalesce((SELECT jsonb_agg(to_jsonb(p)) FROM put_off p WHERE p.job_id = ANY ($1)), '[]')::text AS put_off
