-- 0004 views: what people and Spark may rely on. Columns are added at the end, never renamed or removed.

CREATE FUNCTION priority_label(priority smallint) RETURNS text LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT (ARRAY['very_low', 'low', 'medium', 'high', 'critical'])[priority]
$$;

CREATE VIEW jobs AS
SELECT id,
       state::text AS state,
       priority_label(priority) AS priority,
       priority AS priority_level,
       lane,
       handler,
       uuid_moment(id) AS created_at,
       due_at,
       CASE WHEN state IN ('SUCCEEDED', 'FAILED') THEN changed_at - ran_us * interval '1 microsecond' END AS started_at,
       CASE WHEN state IN ('SUCCEEDED', 'FAILED', 'CANCELLED', 'EXPIRED') THEN changed_at END AS ended_at,
       changed_at,
       waited_us,
       ran_us,
       attempt,
       rescues,
       token,
       bucket_id,
       bucket_epoch,
       cancel_requested,
       convert_from(args, 'UTF8')::json AS args,
       CASE WHEN length(headers) > 0 THEN convert_from(headers, 'UTF8')::json ELSE '{}'::json END AS headers,
       convert_from(result, 'UTF8')::json AS result,
       convert_from(error, 'UTF8')::json AS error
FROM job;

-- One line per identity (job, token, bucket, epoch): attempts that did not conclude their job, and the concluding one,
-- of which every finished job has exactly one.
CREATE VIEW ledger AS
SELECT job_id,
       token,
       bucket_id,
       bucket_epoch,
       false AS concluding,
       outcome,
       at,
       ran_us,
       convert_from(error, 'UTF8')::json AS error,
       refused_at,
       refused_count
FROM attempt
UNION ALL
SELECT id,
       token,
       bucket_id,
       bucket_epoch,
       true,
       lower(state::text),
       changed_at,
       ran_us,
       convert_from(error, 'UTF8')::json,
       NULL,
       0
FROM job
WHERE state IN ('SUCCEEDED', 'FAILED', 'CANCELLED', 'EXPIRED');

CREATE VIEW bucket_status AS
SELECT b.id,
       b.state::text AS state,
       b.store,
       b.lane,
       priority_label(b.priority) AS priority,
       b.priority AS priority_level,
       b.epoch,
       b.owner,
       a.name AS owner_name,
       a.state::text AS owner_state,
       b.created_at,
       b.changed_at,
       (SELECT count(*) FROM job j WHERE j.bucket_id = b.id AND j.state IN ('ASSIGNED', 'PROCESSING')) AS in_flight
FROM bucket b
LEFT JOIN agent a ON a.id = b.owner;

CREATE VIEW agent_status AS
SELECT a.id,
       a.name,
       a.host,
       a.pid,
       a.version,
       a.mode,
       a.store,
       a.weight,
       a.state::text AS state,
       a.state IN ('ACTIVE', 'STOPPING') AND a.lease_until > clock_timestamp() AS healthy,
       a.lease_until,
       a.lease_seconds,
       a.drain_requested,
       a.started_at,
       a.ended_at,
       a.ended_reason,
       a.lanes,
       a.handlers,
       coalesce(l.owner = a.id AND l.expires_at > clock_timestamp(), false) AS coordinator,
       (SELECT count(*) FROM bucket b WHERE b.owner = a.id AND b.state <> 'READY_TO_DELETE') AS buckets
FROM agent a
LEFT JOIN lease l ON l.name = 'coordinator';
