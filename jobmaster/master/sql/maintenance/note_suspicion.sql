-- note_suspicion: records a suspicion for operators, once an hour for each kind and subject
-- in: $1 text kind
-- in: $2 text subject
-- in: $3 text detail
-- in: $4 boolean whether buckets are frozen because of it
-- out: noted boolean (false: it was noted in the last hour)
-- move: nothing
-- fence: none; two agents that see the same at once may note it twice
-- index: operator_log_subject
WITH noted AS (
    INSERT INTO operator_log (actor, action, subject, detail)
    SELECT 'jobmaster', 'suspicion', $2::text, jsonb_build_object('kind', $1::text, 'detail', $3::text, 'frozen', $4::boolean)
    WHERE NOT EXISTS (
        SELECT FROM operator_log
        WHERE subject = $2 AND action = 'suspicion' AND detail ->> 'kind' = $1
          AND at > clock_timestamp() - interval '1 hour'
    )
    RETURNING 1
)
SELECT EXISTS (SELECT FROM noted) AS noted
