-- start: a new bulk operation
-- in: $1 uuid its id
-- in: $2 text kind
-- in: $3 json filter
-- in: $4 json change, of a reschedule
-- in: $5 uuid lowest id that is looked at
-- in: $6 uuid highest id that is looked at
-- in: $7 text the actor
-- in: $8 text reason
-- in: $9 integer buckets that are not searched
-- out: id uuid
-- move: nothing
-- fence: the primary key: sent again, it is the same operation, and is logged once
-- index: bulk_operation_pkey; job_pkey for the lowest id that there is
WITH made AS (
    INSERT INTO bulk_operation (id, kind, filter, change, lowest, highest, actor, reason, unsearched)
    VALUES ($1::uuid, $2::text, $3::json::jsonb, $4::json::jsonb,
            greatest($5::uuid, (SELECT j.id FROM job j WHERE j.id <= $6::uuid ORDER BY j.id LIMIT 1)), $6, $7::text, $8::text,
            $9::integer)
    ON CONFLICT (id) DO NOTHING
    RETURNING id, kind, filter, change
), logged AS (
    INSERT INTO operator_log (actor, action, subject, detail)
    SELECT $7, 'bulk ' || kind, id::text, jsonb_build_object('reason', $8, 'filter', filter, 'change', change) FROM made
)
SELECT id FROM made
