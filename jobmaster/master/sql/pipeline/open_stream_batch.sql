-- open_stream_batch: the moment of a micro-batch of a streaming query: the same for every task of it, also of a repeated one
-- in: $1 text name of the query
-- in: $2 bigint number of the micro-batch
-- out: as_of_us bigint (microseconds since 1970), now_us bigint, floor uuid (lowest id that is taken), ceiling uuid,
--      latest bigint (number of the query's latest micro-batch: above $2 when this one is over)
-- move: nothing
-- fence: the row's lock and the number: it only grows, so tasks of a micro-batch that is over get no moment of their own. Moments
--        only grow, so ids of two micro-batches differ also when the clock was set back.
-- index: pipeline_batch_pkey
WITH batch AS (
    INSERT INTO pipeline_batch (name, as_of, stream_batch) VALUES ($1::text, clock_timestamp(), $2::bigint)
    ON CONFLICT (name) DO UPDATE
    SET as_of = CASE WHEN excluded.stream_batch > coalesce(pipeline_batch.stream_batch, -1)
                     THEN greatest(excluded.as_of, pipeline_batch.as_of + interval '1 millisecond')
                     ELSE pipeline_batch.as_of END,
        stream_batch = greatest(pipeline_batch.stream_batch, excluded.stream_batch)
    RETURNING as_of, stream_batch
)
SELECT to_us(as_of) AS as_of_us, to_us(clock_timestamp()) AS now_us, floor,
       (SELECT hi FROM partitions_of('job') ORDER BY hi DESC LIMIT 1) AS ceiling, stream_batch AS latest
FROM batch, watermark
