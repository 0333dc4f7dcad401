-- claim_keys: which rows of a source are new; the jobs are put in by the same transaction
-- in: $1 integer source
-- in: $2 uuid[] keys of the rows, none twice
-- in: $3 uuid[] ids that their jobs would have
-- out: job_ids uuid[] of the rows that go in, remembered boolean (false: the source was forgotten, and no row goes in)
-- move: nothing
-- fence: the primary key: of two runs that bring one row at once, the second waits for the first and then leaves it out;
--        the lock of the source: forget_source waits for the transaction, and later ones find no source
-- index: pipeline_source_pkey, pipeline_key_pkey
WITH found AS MATERIALIZED (
    SELECT id FROM pipeline_source WHERE id = $1::integer FOR KEY SHARE
), put AS (
    INSERT INTO pipeline_key (source, row_key, job_id)
    SELECT found.id, new.row_key, new.job_id
    FROM found CROSS JOIN unnest($2::uuid[], $3::uuid[]) AS new (row_key, job_id)
    ORDER BY new.row_key
    ON CONFLICT (source, row_key) DO NOTHING
    RETURNING job_id
)
SELECT coalesce(array_agg(job_id), '{}') AS job_ids, EXISTS (SELECT FROM found) AS remembered FROM put
