-- attempts: the attempts that did not conclude one job, oldest first
-- in: $1 uuid job
-- out: token integer, bucket_id uuid, bucket_epoch bigint, outcome text, at_us bigint, ran_us bigint, error bytea,
--      refused_us bigint, refused_count integer
-- move: nothing
-- fence: none
-- index: primary key of attempt
SELECT token, bucket_id, bucket_epoch, outcome, (extract(epoch FROM at) * 1000000)::bigint AS at_us, ran_us, error,
       (extract(epoch FROM refused_at) * 1000000)::bigint AS refused_us, refused_count
FROM attempt_kept
WHERE job_id = $1::uuid
ORDER BY token, at
