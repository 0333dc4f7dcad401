-- waiting: how many jobs wait for the signal of each key, the most first
-- in: $1 text key, NULL = all
-- in: $2 integer limit of keys
-- out: key text, jobs bigint, since timestamptz (of the job that has waited longest)
-- move: nothing
-- fence: none
-- index: job_signal, read whole without a key
SELECT convert_from(decode(form, 'escape'), 'UTF8') AS key, count(*) AS jobs, min(changed_at) AS since
FROM (
    SELECT signal_key(headers) AS form, changed_at FROM job
    WHERE state = 'WAITING' AND bucket_id IS NULL AND signal_key(headers) IS NOT NULL
      AND ($1::text IS NULL OR signal_key(headers) = signal_key_form($1))
) AS waits
GROUP BY form
ORDER BY jobs DESC, form
LIMIT $2::integer
