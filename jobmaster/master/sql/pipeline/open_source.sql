-- open_source: the number under which the rows of a source are remembered, from now on or from long ago
-- in: $1 text name
-- out: id integer, adopts_us bigint (microseconds since 1970: moment of the batch of that name whose rows are to be remembered too, or NULL)
-- move: nothing
-- fence: the unique name: of two that come at once the second gets the first one's number
-- index: pipeline_source_name_key, pipeline_batch_pkey
WITH made AS (
    INSERT INTO pipeline_source (name) VALUES ($1::text)
    ON CONFLICT (name) DO UPDATE SET name = excluded.name
    RETURNING id, adopted_at
)
SELECT id, CASE WHEN adopted_at IS NULL THEN (SELECT to_us(as_of) FROM pipeline_batch WHERE name = $1::text) END AS adopts_us
FROM made
