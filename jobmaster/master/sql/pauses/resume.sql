-- resume: an operator ends a pause
-- in: $1 text kind
-- in: $2 text value
-- in: $3 text the actor
-- in: $4 text reason
-- out: version bigint (no row: there was no such pause)
-- move: nothing
-- fence: the one row of pause_version, locked first, as in pause
-- index: pause_version_pkey, pause_pkey
WITH locked AS MATERIALIZED (
    SELECT 1 FROM pause_version FOR UPDATE
), over AS (
    DELETE FROM pause p USING locked WHERE p.kind = $1::text AND p.value = $2::text
    RETURNING p.until IS NULL OR p.until > clock_timestamp() AS in_force
), changed AS (
    UPDATE pause_version v SET version = greatest(v.version + 1, to_us(clock_timestamp())) FROM over WHERE over.in_force RETURNING v.version
), logged AS (
    INSERT INTO operator_log (actor, action, subject, detail)
    SELECT $3::text, 'resume', $1 || ' ' || $2, jsonb_build_object('reason', $4::text) FROM changed
)
SELECT version FROM changed
