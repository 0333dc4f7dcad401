-- tick: the leader renews its lease and reads which lanes are due and whether an agent or a job is overdue
-- in: $1 uuid agent
-- in: $2 integer weight
-- in: $3 double precision lease, seconds
-- in: $4 double precision horizon, seconds from now
-- out: epoch bigint (no row: another agent leads), overdue boolean, heavier boolean (an agent of greater weight could lead,
--      and has been there for longer than its lease), late boolean (a job runs longer than its complete_time),
--      signals boolean (a job has waited in vain for its signal, or the sender of a signal has not finished it for ten
--      seconds), batches boolean (a batch is to be looked at, or
--      notes of ended jobs are to be taken), bulk boolean (a bulk operation has not ended), lanes text[], priorities smallint[], fires_in_seconds double precision (until the first fire of a schedule is to be decided; NULL = there
--      is none)
-- move: nothing
-- fence: compare-and-set on the lease row: owner and lease are the caller's; an agent that took it has changed the owner
-- index: lease_pkey; job_due, two probes a group; job_expires, signal_unfinished, batch_look, batch_note_lo and
--        schedule_decide, bulk_unended, one or two probes each; the table of agents is small
WITH RECURSIVE leadership AS (
    UPDATE lease SET weight = $2::integer, expires_at = clock_timestamp() + make_interval(secs => $3::double precision)
    WHERE name = 'leader' AND owner = $1::uuid
    RETURNING epoch
), groups AS (
    (SELECT lane, priority FROM job WHERE state = 'HELD' ORDER BY lane DESC, priority DESC, due_at DESC LIMIT 1)
    UNION ALL
    SELECT next.lane, next.priority
    FROM groups g, LATERAL (
        SELECT lane, priority FROM job
        WHERE state = 'HELD' AND (lane, priority) < (g.lane, g.priority)
        ORDER BY lane DESC, priority DESC, due_at DESC LIMIT 1
    ) AS next
), due AS (
    SELECT lane, priority
    FROM groups g
    WHERE (
        SELECT true FROM job j
        WHERE j.state = 'HELD' AND j.lane = g.lane AND j.priority = g.priority
          AND j.due_at <= statement_timestamp() + make_interval(secs => $4::double precision)
        ORDER BY j.due_at DESC LIMIT 1
    )
)
SELECT epoch,
       EXISTS (SELECT FROM agent WHERE state IN ('ACTIVE', 'STOPPING') AND lease_until < clock_timestamp()) AS overdue,
       EXISTS (
           SELECT FROM agent
           WHERE weight > $2 AND mode IN ('full', 'leader') AND state = 'ACTIVE' AND NOT drain_requested
             AND lease_until > clock_timestamp() AND started_at + make_interval(secs => lease_seconds) < clock_timestamp()
       ) AS heavier,
       coalesce((
           SELECT true FROM job
           WHERE state = 'PROCESSING' AND expires_at IS NOT NULL AND expires_at <= statement_timestamp()
           ORDER BY expires_at LIMIT 1
       ), false) AS late,
       coalesce((
           SELECT true FROM job
           WHERE state = 'WAITING' AND expires_at IS NOT NULL AND expires_at <= statement_timestamp() AND bucket_id IS NULL
           ORDER BY expires_at LIMIT 1
       ), false) OR coalesce((
           SELECT true FROM signal
           WHERE NOT finished AND sent_at <= statement_timestamp() - interval '10 seconds' ORDER BY sent_at LIMIT 1
       ), false) AS signals,
       coalesce((
           SELECT true FROM batch WHERE look_at <= statement_timestamp() ORDER BY look_at LIMIT 1
       ), (SELECT true FROM batch_note ORDER BY lo LIMIT 1), false) AS batches,
       EXISTS (SELECT FROM bulk_operation WHERE state IN ('WAITING', 'RUNNING')) AS bulk,
       (SELECT coalesce(array_agg(lane ORDER BY lane, priority), '{}') FROM due) AS lanes,
       (SELECT coalesce(array_agg(priority ORDER BY lane, priority), '{}') FROM due) AS priorities,
       (SELECT extract(epoch FROM decide_at - clock_timestamp())::double precision FROM schedule
        WHERE decide_at IS NOT NULL ORDER BY decide_at LIMIT 1) AS fires_in_seconds
FROM leadership
