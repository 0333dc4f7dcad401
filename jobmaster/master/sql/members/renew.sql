-- renew: an agent's heartbeat; renews its lease and returns what changed for the agent
-- in: $1 uuid agent
-- in: $2 double precision lease, seconds
-- in: $3 text statistics of its process and host, JSON (NULL: as before)
-- out: drain_requested boolean, leader uuid, lost_stores text[], cancel_requested uuid[], frozen uuid[], at_work bigint, epochs bigint, agents bigint,
--      help_lanes text[], help_priorities smallint[], now_at timestamptz, pauses bigint (version), pauses_obeyed bigint (NULL: the agent's row has none), mode text
-- move: ACTIVE|STOPPING -> ACTIVE|STOPPING
-- fence: one compare-and-set on the agent row: a certificate that came first leaves no row, this renewal that came first
--        makes the certificate match nothing. Locks no other row, so no lock of a job can starve a heartbeat.
-- index: agent_pkey (HOT: nothing indexed changes); job_by_bucket: of these buckets, the jobs with a cancel request, and
--        those that wait leave it with the next statement of their owner: so all of them are read, and those that run come first;
--        bucket_owner, the few buckets of one agent; bucket_lost; agents are counted in their small table;
--        bucket_request is nearly always empty; pause_version and cluster have one row
WITH me AS (
    UPDATE agent
    SET lease_until = clock_timestamp() + make_interval(secs => $2::double precision),
        lease_seconds = $2,
        held_since = CASE WHEN lease_until < clock_timestamp() THEN clock_timestamp() ELSE held_since END,
        beats = beats + 1,
        statistics = coalesce($3::text::jsonb, statistics),
        statistics_at = CASE WHEN $3 IS NULL THEN statistics_at ELSE clock_timestamp() END
    WHERE id = $1::uuid AND state IN ('ACTIVE', 'STOPPING')
    RETURNING drain_requested, pauses_obeyed
), mine AS (
    SELECT id, state, epoch FROM bucket WHERE owner = $1 AND state <> 'READY_TO_DELETE'
)
SELECT me.drain_requested,
       (SELECT owner FROM lease WHERE name = 'leader' AND expires_at > clock_timestamp()) AS leader,
       ARRAY (SELECT DISTINCT store FROM bucket WHERE state = 'LOST') AS lost_stores,
       ARRAY (SELECT id FROM job
              WHERE cancel_requested AND state IN ('ASSIGNED', 'PROCESSING')
                AND bucket_id = ANY (ARRAY (SELECT id FROM mine))
              ORDER BY state = 'PROCESSING' DESC, id
              LIMIT 1000) AS cancel_requested,
       ARRAY (SELECT id FROM mine WHERE state = 'FROZEN') AS frozen,
       (SELECT count(*) FROM mine WHERE state IN ('ACTIVE', 'COMPLETING', 'FROZEN')) AS at_work,
       (SELECT coalesce(sum(epoch), 0)::bigint FROM mine WHERE state IN ('ACTIVE', 'COMPLETING', 'FROZEN')) AS epochs,
       (SELECT count(*) FROM agent WHERE state IN ('ACTIVE', 'STOPPING')) AS agents,
       ARRAY (SELECT lane FROM bucket_request WHERE agent_id = $1 ORDER BY lane, priority, handler) AS help_lanes,
       ARRAY (SELECT priority FROM bucket_request WHERE agent_id = $1 ORDER BY lane, priority, handler) AS help_priorities,
       clock_timestamp() AS now_at,
       (SELECT version FROM pause_version) AS pauses,
       me.pauses_obeyed,
       (SELECT mode FROM cluster) AS mode
FROM me
