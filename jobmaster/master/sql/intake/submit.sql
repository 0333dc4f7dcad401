-- submit: one job by the function of the schema, in the caller's transaction, through any driver
-- in: $1 text handler
-- in: $2 text arguments, a JSON object
-- in: $3 text options, a JSON object
-- out: job_id uuid
-- move: none -> HELD|WAITING
-- fence: as insert_held: the primary key; an id that has a row is compared with it and left alone. With wait_for as hold_waiting
-- index: job_pkey and idempotency_pkey, as the arbiters; the tables of handlers, agents and buckets are small
SELECT @schema.submit(CAST($1 AS text), CAST(CAST($2 AS text) AS jsonb), CAST(CAST($3 AS text) AS jsonb)) AS job_id
