-- adopt_batch: rows of a batch, written before its source was remembered, as far as the master still has them, some at a time
-- in: $1 integer source
-- in: $2 uuid lowest id that was not read yet: at first that of the batch's moment, then the last one that was read
-- in: $3 uuid lowest id after the batch's moment
-- in: $4 integer rows, at least two
-- out: found bigint (fewer than $4: these were all), last uuid (NULL: there is none), remembered boolean (false: the source was
--      forgotten, and nothing is remembered)
-- move: nothing
-- fence: the primary key; done again it adds nothing. The lock of the source: forget_source waits for the statement, and later
--        ones find no source
-- index: job_pkey, in order up to the limit; pipeline_source_pkey, pipeline_key_pkey
WITH source AS MATERIALIZED (
    SELECT id FROM pipeline_source WHERE id = $1::integer FOR KEY SHARE
), page AS MATERIALIZED (
    SELECT id FROM job_kept WHERE id >= $2::uuid AND id < $3::uuid ORDER BY id LIMIT $4::integer
), rows AS (
    INSERT INTO pipeline_key (source, row_key, job_id)
    SELECT source.id, ('00000000-0000-' || substr(page.id::text, 15))::uuid, page.id
    FROM source CROSS JOIN page
    ORDER BY 2
    ON CONFLICT (source, row_key) DO NOTHING
)
SELECT (SELECT count(*) FROM page) AS found, (SELECT id FROM page ORDER BY id DESC LIMIT 1) AS last,
       EXISTS (SELECT FROM source) AS remembered
