-- declare: limits as an agent has them, of its code and its configuration
-- in: $1 uuid agent
-- in: $2 text[] names
-- in: $3 integer[] jobs that may run at once, NULL = no such limit
-- in: $4 double precision[] starts a second, NULL = no such limit
-- in: $5 double precision[] starts that may come at once after a pause, NULL = no rate
-- out: name text (of those over which values of an operator stand)
-- move: nothing
-- fence: locked in the order of names; a declaration of an agent that started later stands, also when its numbers are the same.
--        What an operator has set stays.
-- index: job_limit_pkey, as the arbiter
WITH declared AS (
    INSERT INTO job_limit AS l (name, declared_running, declared_rate, declared_burst, declared_at)
    SELECT new.name, new.running, new.rate, new.burst, agent.started_at
    FROM agent, unnest($2::text[], $3::integer[], $4::double precision[], $5::double precision[]) AS new (name, running, rate, burst)
    WHERE agent.id = $1::uuid
    ORDER BY new.name COLLATE "C"
    ON CONFLICT (name) DO UPDATE
    SET declared_running = EXCLUDED.declared_running, declared_rate = EXCLUDED.declared_rate,
        declared_burst = EXCLUDED.declared_burst, declared_at = EXCLUDED.declared_at, changed_at = clock_timestamp()
    WHERE coalesce(l.declared_at, '-infinity') <= EXCLUDED.declared_at
      AND (l.declared_running, l.declared_rate, l.declared_burst, l.declared_at)
          IS DISTINCT FROM (EXCLUDED.declared_running, EXCLUDED.declared_rate, EXCLUDED.declared_burst, EXCLUDED.declared_at)
)
SELECT name FROM job_limit WHERE name = ANY ($2) AND set_at IS NOT NULL ORDER BY name
