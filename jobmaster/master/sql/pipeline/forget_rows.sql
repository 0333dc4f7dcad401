-- forget_rows: some rows of a source are not remembered any more
-- in: $1 integer source
-- in: $2 uuid the last key that was forgotten, at first the lowest there can be
-- in: $3 integer rows
-- out: forgotten bigint (fewer than $3: these were all), last uuid (NULL: there is none)
-- move: nothing
-- fence: none; after a kill between two calls the same command continues
-- index: pipeline_key_pkey, from a given key on: before it lie the dead entries of the last call
WITH page AS MATERIALIZED (
    SELECT source, row_key FROM pipeline_key
    WHERE source = $1::integer AND row_key >= $2::uuid
    ORDER BY row_key
    LIMIT $3::integer
), gone AS (
    DELETE FROM pipeline_key k USING page WHERE k.source = page.source AND k.row_key = page.row_key
)
SELECT (SELECT count(*) FROM page) AS forgotten, (SELECT row_key FROM page ORDER BY row_key DESC LIMIT 1) AS last
