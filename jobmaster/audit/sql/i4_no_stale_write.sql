-- I4: no accepted write carries an old token.
-- in:    $1 evidence rows, $2 lowest job id looked at
-- out:   subject (job id), detail, total
-- why:   an outcome on the row whose token is below that of an attempt made before it, or a success of an assignment that
--        is marked as refused: a superseded owner's write went through. (A job that a rescue ended as FAILED has the
--        identity of the dead owner, whose late write is refused and leaves such a mark rightly.)
-- index: primary keys of job and attempt.
SELECT subject, detail, count(*) OVER () AS total
FROM (
    SELECT j.id AS subject,
           CASE
               WHEN max(a.token) FILTER (WHERE a.outcome <> 'refused') > j.token
                   THEN format('%s with token %s after an attempt with token %s', j.state, j.token,
                               max(a.token) FILTER (WHERE a.outcome <> 'refused'))
               WHEN j.state = 'SUCCEEDED' AND bool_or(a.refused_at IS NOT NULL AND a.token = j.token AND a.bucket_id = j.bucket_id
                            AND a.bucket_epoch = j.bucket_epoch)
                   THEN format('%s by an assignment whose writes were refused (token %s)', j.state, j.token)
           END AS detail
    FROM job j
    JOIN attempt a ON a.job_id = j.id
    WHERE j.id >= $2::uuid AND a.job_id >= $2::uuid AND j.state IN ('SUCCEEDED', 'FAILED')
    GROUP BY j.id, j.state, j.token, j.bucket_id, j.bucket_epoch
) checked
WHERE detail IS NOT NULL
ORDER BY subject
LIMIT $1::int
