-- confirm: a job is confirmed from outside, while its handler runs or after it has returned
-- in: $1 uuid job
-- in: $2 integer token
-- in: $3 uuid bucket
-- in: $4 bigint bucket epoch
-- in: $5 bytea result (JSON), NULL for none
-- in: $6 text the actor
-- out: state text
-- move: PROCESSING|WAITING -> SUCCEEDED
-- fence: identity (token, bucket, epoch) on the row: a run that was given up, lost or superseded cannot be confirmed
-- index: job_pkey, one partition
WITH confirmed AS (
    UPDATE job
    SET state = 'SUCCEEDED', result = $5::bytea, error = NULL, expires_at = NULL, changed_at = clock_timestamp(),
        attempt = CASE state WHEN 'PROCESSING' THEN attempt + 1 ELSE attempt END
    WHERE id = $1::uuid AND token = $2::integer AND bucket_id = $3::uuid AND bucket_epoch = $4::bigint
      AND state IN ('PROCESSING', 'WAITING')
    RETURNING id, state
), logged AS (
    INSERT INTO operator_log (actor, action, subject) SELECT $6::text, 'job confirm', id::text FROM confirmed
)
SELECT state::text AS state FROM confirmed
