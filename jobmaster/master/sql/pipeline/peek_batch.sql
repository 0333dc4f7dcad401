-- peek_batch: the answer of open_batch, without creating the batch
-- in: $1 text name
-- in: $2 timestamptz moment that is wanted, NULL = now; of a batch that exists its own counts
-- out: as_of_us bigint (microseconds since 1970), now_us bigint, floor uuid (lowest id that is taken), ceiling uuid
-- move: nothing
-- fence: none, it reads
-- index: pipeline_batch_pkey
SELECT to_us(coalesce((SELECT as_of FROM pipeline_batch WHERE name = $1::text), $2::timestamptz, clock_timestamp())) AS as_of_us,
       to_us(clock_timestamp()) AS now_us, floor,
       (SELECT hi FROM partitions_of('job') ORDER BY hi DESC LIMIT 1) AS ceiling
FROM watermark
