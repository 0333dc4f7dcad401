-- find: one step of a bulk operation through the jobs of a range of ids, the oldest first
-- in: $1 text kind
-- in: $2 text filter, JSON
-- in: $3 uuid lowest id
-- in: $4 uuid highest id
-- in: $5 integer rows that the step reads
-- in: $6 integer jobs that it returns at most
-- in: $7 bigint the new due time of a reschedule, microseconds since 1970, 0 = now, NULL = the present one
-- in: $8 boolean with what a retry needs
-- out: read_to uuid (the same in every row: the highest id that was read, NULL: there is none), id uuid (NULL in the only row: no
--      job fits), skip text (why it is left alone, NULL: it is not), holder uuid (the id that is reserved for its retry),
--      handler text, lane text, priority smallint, args bytea, headers bytea
-- move: nothing
-- fence: none: the page that is written compares the states again
-- index: job_pkey, partition by partition, first for the id at which the step ends, then for the jobs; idempotency_pkey for each
--        job of a retry; put_off_pkey
WITH step AS MATERIALIZED (
    SELECT coalesce((
        SELECT id FROM job WHERE id BETWEEN $3::uuid AND $4::uuid ORDER BY id OFFSET $5::integer - 1 LIMIT 1
    ), (SELECT id FROM job WHERE id BETWEEN $3 AND $4 ORDER BY id DESC LIMIT 1)) AS read_to
)
SELECT step.read_to, f.id, f.skip, f.holder, f.handler, f.lane, f.priority, f.args, f.headers
FROM step
LEFT JOIN LATERAL (
    SELECT j.id, j.handler, j.lane, j.priority, r.job_id AS holder,
           CASE WHEN $8::boolean THEN j.args END AS args, CASE WHEN $8 THEN j.headers END AS headers,
           CASE $1::text
               WHEN 'retry' THEN CASE WHEN r.has_row THEN 'RETRIED' END
               WHEN 'cancel' THEN CASE WHEN j.cancel_requested THEN 'REQUESTED' END
               WHEN 'reschedule' THEN
                   CASE WHEN j.state <> 'HELD' THEN CASE WHEN j.bucket_id IS NULL THEN 'SIGNAL' ELSE 'IN_BUCKET' END
                        WHEN $7::bigint > 0 AND from_us($7) >= j.expires_at THEN 'EXPIRES' END
               ELSE CASE WHEN position('"workflow":["'::bytea IN j.headers) > 0 THEN 'WORKFLOW' END
           END AS skip
    FROM job j
    CROSS JOIN job_filter_of($2::text::jsonb) AS chosen
    LEFT JOIN put_off p ON p.job_id = j.id AND p.until = j.due_at
    LEFT JOIN LATERAL (
        SELECT i.job_id, EXISTS (SELECT FROM job k WHERE k.id = i.job_id) AS has_row FROM idempotency i
        WHERE $1 = 'retry' AND i.scope = j.handler AND i.key = 'retry of ' || j.id::text
    ) r ON true
    WHERE j.id BETWEEN $3 AND step.read_to
      AND job_matches(chosen, j.id, j.state, j.handler, j.lane, j.priority, coalesce(p.due_at, j.due_at), j.headers, j.error)
      AND j.headers <> deleted_headers()
    ORDER BY j.id
    LIMIT $6::integer
) f ON true
ORDER BY f.id
