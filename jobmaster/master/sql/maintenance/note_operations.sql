-- note_operations: acts of an operator that have no statement of their own
-- in: $1 text the actor
-- in: $2 text what was done, as the command is called
-- in: $3 text[] to what
-- in: $4 text[] more of it, JSON
-- out: nothing
-- move: nothing
-- fence: none; a line for operators
-- index: operator_log_pkey
INSERT INTO operator_log (actor, action, subject, detail)
SELECT $1::text, $2::text, subject, detail::jsonb
FROM unnest($3::text[], $4::text[]) AS acts (subject, detail)
