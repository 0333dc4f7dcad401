-- I1: at most one concluding ledger line per job id, ever, and one line per assignment.
-- in:    $1 evidence rows, $2 lowest job id looked at
-- out:   subject (job id), detail, total (violations in all)
-- why:   two final rows of one id (the key is gone, or partitions overlap), or a job whose concluding assignment also
--        is in the list of attempts that did not conclude it.
-- index: primary keys of job and attempt; one pass over each from $2 on.
SELECT subject, detail, count(*) OVER () AS total
FROM (
    SELECT job_id AS subject, format('%s concluding lines', count(*)) AS detail
    FROM ledger
    WHERE job_id >= $2::uuid AND concluding
    GROUP BY job_id
    HAVING count(*) > 1
    UNION ALL
    SELECT j.id, format('%s with token %s, which is also recorded as an attempt that %s', j.state, j.token, a.outcome)
    FROM job j
    JOIN attempt a ON a.job_id = j.id AND a.token = j.token AND a.bucket_id = j.bucket_id AND a.bucket_epoch = j.bucket_epoch
    WHERE j.id >= $2::uuid AND a.job_id >= $2::uuid
      AND j.state IN ('SUCCEEDED', 'FAILED', 'CANCELLED', 'EXPIRED') AND a.outcome <> 'refused'
) found
ORDER BY subject
LIMIT $1::int
