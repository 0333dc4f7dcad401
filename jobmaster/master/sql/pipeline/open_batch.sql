-- open_batch: the moment of a batch of that name, from now on or from long ago
-- in: $1 text name
-- in: $2 timestamptz moment that is wanted, NULL = now; of a batch that exists its own stays
-- out: as_of_us bigint (microseconds since 1970), now_us bigint, floor uuid (lowest id that is taken), ceiling uuid
-- move: nothing
-- fence: the primary key: of two that come at once the second gets the first one's moment
-- index: pipeline_batch_pkey
WITH batch AS (
    INSERT INTO pipeline_batch (name, as_of) VALUES ($1::text, coalesce($2::timestamptz, clock_timestamp()))
    ON CONFLICT (name) DO UPDATE SET name = excluded.name
    RETURNING as_of
)
SELECT to_us(as_of) AS as_of_us, to_us(clock_timestamp()) AS now_us, floor,
       (SELECT hi FROM partitions_of('job') ORDER BY hi DESC LIMIT 1) AS ceiling
FROM batch, watermark
