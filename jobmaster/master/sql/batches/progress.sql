-- progress: what has become of the jobs of a batch, counted
-- in: $1 uuid batch
-- out: succeeded bigint, failed bigint, cancelled bigint, expired bigint, held bigint, in_flight bigint, quarantined bigint, nested_ended bigint
-- move: nothing
-- fence: none, one snapshot
-- index: batch_range_batch; one range of job_pkey for each range; quarantine (job_id, reason); batch_parent
WITH ranges AS MATERIALIZED (
    SELECT lo, batch_range_end(lo) AS hi FROM batch_range WHERE batch = $1::uuid
), states AS MATERIALIZED (
    SELECT j.state, count(*) AS jobs
    FROM ranges r CROSS JOIN LATERAL (SELECT k.state FROM job_kept k WHERE k.id > r.lo AND k.id <= r.hi) j
    GROUP BY j.state
)
SELECT coalesce(sum(jobs) FILTER (WHERE state = 'SUCCEEDED'), 0)::bigint AS succeeded,
       coalesce(sum(jobs) FILTER (WHERE state = 'FAILED'), 0)::bigint AS failed,
       coalesce(sum(jobs) FILTER (WHERE state = 'CANCELLED'), 0)::bigint AS cancelled,
       coalesce(sum(jobs) FILTER (WHERE state = 'EXPIRED'), 0)::bigint AS expired,
       coalesce(sum(jobs) FILTER (WHERE state IN ('HELD', 'WAITING')), 0)::bigint AS held,
       coalesce(sum(jobs) FILTER (WHERE state IN ('ASSIGNED', 'PROCESSING')), 0)::bigint AS in_flight,
       (SELECT count(DISTINCT q.job_id) FROM ranges r JOIN quarantine q ON q.job_id > r.lo AND q.job_id <= r.hi
        WHERE NOT EXISTS (SELECT FROM job_kept j WHERE j.id = q.job_id)) AS quarantined,
       (SELECT count(*) FROM batch n WHERE n.parent = $1 AND n.look_at IS NULL) AS nested_ended
FROM states
