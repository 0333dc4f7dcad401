-- lock_page: jobs that go to another master, locked until they are MOVED
-- in: $1 uuid[] jobs
-- out: id uuid, bytes bigint (of the row and its attempts, without what has a fixed size), signal_key text (NULL: it waits for none)
-- move: nothing
-- fence: the rows, locked in the order of their ids: a cancel, an expiry or a change is committed before, or finds the job MOVED
-- index: job_pkey, attempt_pkey
SELECT j.id,
       (octet_length(j.args) + octet_length(j.headers) + coalesce(octet_length(j.result), 0) + coalesce(octet_length(j.error), 0))::bigint
           + (SELECT coalesce(sum(octet_length(a.error)), 0) FROM attempt a WHERE a.job_id = j.id)::bigint AS bytes,
       CASE WHEN j.state = 'WAITING' AND j.bucket_id IS NULL
            THEN convert_from(decode(signal_key(j.headers), 'escape'), 'UTF8') END AS signal_key
FROM job j
WHERE j.id = ANY ($1::uuid[]) AND j.state IN ('HELD', 'WAITING')
ORDER BY j.id
FOR UPDATE OF j
