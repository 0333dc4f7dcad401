-- 0076 stream batch: a streaming query that writes jobs has one row among the batches, with the number of its latest micro-batch.
-- Its moment is that of this micro-batch.
ALTER TABLE pipeline_batch ADD COLUMN stream_batch bigint;
