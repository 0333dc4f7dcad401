-- claim_keys: which rows of a source are new; the jobs are put in by the same transaction
-- in: $1 integer source
-- in: $2 uuid[] keys of the rows, none twice
-- in: $3 uuid[] ids that their jobs would have
-- out: job_ids uuid[] of the rows that go in
-- move: nothing
-- fence: the primary key: of two runs that bring one row at once, the second waits for the first and then leaves it out
-- index: pipeline_key_pkey
WITH put AS (
    INSERT INTO pipeline_key (source, row_key, job_id)
    SELECT $1::integer, new.row_key, new.job_id
    FROM unnest($2::uuid[], $3::uuid[]) AS new (row_key, job_id)
    ORDER BY new.row_key
    ON CONFLICT (source, row_key) DO NOTHING
    RETURNING job_id
)
SELECT coalesce(array_agg(job_id), '{}') AS job_ids FROM put
