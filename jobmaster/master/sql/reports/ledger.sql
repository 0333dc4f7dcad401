-- ledger: every line of one job, oldest first
-- in: $1 uuid job
-- out: token integer, bucket_id uuid, bucket_epoch bigint, concluding boolean, outcome text, at_us bigint, ran_us bigint,
--      refused_us bigint, refused_count integer
-- move: nothing
-- fence: none
-- index: primary keys of attempt and job
SELECT token, bucket_id, bucket_epoch, concluding, outcome, (extract(epoch FROM at) * 1000000)::bigint AS at_us, ran_us,
       (extract(epoch FROM refused_at) * 1000000)::bigint AS refused_us, refused_count
FROM ledger
WHERE job_id = $1::uuid
ORDER BY at, token
