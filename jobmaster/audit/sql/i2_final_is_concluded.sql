-- I2: a row is final exactly when it has a concluding line: what an outcome consists of is on it, and on no other row.
-- in:    $1 evidence rows, $2 lowest job id looked at
-- out:   subject (job id), detail, total
-- index: primary key of job; one pass from $2 on.
SELECT id AS subject, detail, count(*) OVER () AS total
FROM (
    SELECT id,
           CASE
               WHEN state = 'SUCCEEDED' AND error IS NOT NULL THEN 'SUCCEEDED with an error'
               WHEN state = 'SUCCEEDED' AND bucket_id IS NULL THEN 'SUCCEEDED without an assignment'
               WHEN state = 'FAILED' AND error IS NULL THEN 'FAILED without an error'
               WHEN state <> 'SUCCEEDED' AND result IS NOT NULL THEN state || ' with a result'
           END AS detail
    FROM job
    WHERE id >= $2::uuid
) checked
WHERE detail IS NOT NULL
ORDER BY id
LIMIT $1::int
