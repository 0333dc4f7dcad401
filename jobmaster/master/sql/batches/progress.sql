-- progress: what has become of the jobs of a batch, counted
-- in: $1 uuid batch
-- out: succeeded bigint, failed bigint, cancelled bigint, expired bigint, held bigint, in_flight bigint
-- move: nothing
-- fence: none, one snapshot
-- index: batch_range_batch; one range of job_pkey for each range; quarantine (job_id, reason); batch_dropped_pkey
SELECT succeeded, failed, cancelled, expired, held, in_flight FROM batch_count($1::uuid)
