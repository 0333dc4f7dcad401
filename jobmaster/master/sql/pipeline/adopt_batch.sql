-- adopt_batch: the rows of a batch, written before its source was remembered, as far as the master still has them
-- in: $1 integer source
-- in: $2 uuid lowest id of the batch's moment
-- in: $3 uuid lowest id after it
-- out: nothing
-- move: nothing
-- fence: the primary key; done again it adds nothing
-- index: job_pkey, pipeline_key_pkey, pipeline_source_pkey
WITH rows AS (
    INSERT INTO pipeline_key (source, row_key, job_id)
    SELECT $1::integer, ('00000000-0000-' || substr(id::text, 15))::uuid, id
    FROM jobs
    WHERE id >= $2::uuid AND id < $3::uuid
    ON CONFLICT (source, row_key) DO NOTHING
)
UPDATE pipeline_source SET adopted_at = clock_timestamp() WHERE id = $1::integer
