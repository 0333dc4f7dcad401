-- note_once: an act that happens once, as a line of the operator log; repeated requests add none
-- in: $1 text the actor
-- in: $2 text what was done, as the command is called
-- in: $3 text to what
-- in: $4 text more of it, JSON
-- out: nothing
-- move: nothing
-- fence: none; a line for operators. Two callers at the same moment may both write one
-- index: operator_log_subject
INSERT INTO operator_log (actor, action, subject, detail)
SELECT $1::text, $2::text, $3::text, $4::text::jsonb
WHERE NOT EXISTS (
    SELECT FROM operator_log WHERE subject = $3::text AND action = $2::text AND detail = $4::text::jsonb
)
