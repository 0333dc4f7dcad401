-- retire_undeclared: schedules of code and configuration that no living agent has declared for a while are retired, once
-- in: $1 double precision grace, seconds
-- out: name text (of a retired one)
-- move: nothing
-- fence: compare-and-set on retired_at and undeclared_since; an agent that declares one again unretires it
-- index: none: the table is small, and only rows that change are written
WITH seen AS MATERIALIZED (
    SELECT name, declared
    FROM (
        SELECT s.name, s.undeclared_since,
               s.name IN (SELECT unnest(a.schedules) FROM agent a WHERE a.state IN ('ACTIVE', 'STOPPING')) AS declared
        FROM schedule s
        WHERE s.source <> 'api' AND s.retired_at IS NULL
        OFFSET 0  -- the names that are declared are hashed once, and each is looked up once
    ) each
    WHERE declared = (undeclared_since IS NOT NULL)
       OR (NOT declared AND undeclared_since < clock_timestamp() - make_interval(secs => $1::double precision))
), chosen AS MATERIALIZED (
    SELECT s.name, seen.declared FROM seen JOIN schedule s ON s.name = seen.name
    WHERE s.source <> 'api' AND s.retired_at IS NULL
      AND (seen.declared = (s.undeclared_since IS NOT NULL)
           OR (NOT seen.declared AND s.undeclared_since < clock_timestamp() - make_interval(secs => $1)))
    ORDER BY s.name
    FOR UPDATE OF s
), marked AS (
    UPDATE schedule s
    SET undeclared_since = CASE WHEN c.declared THEN NULL ELSE coalesce(s.undeclared_since, clock_timestamp()) END,
        retired_at = CASE WHEN NOT c.declared AND s.undeclared_since < clock_timestamp() - make_interval(secs => $1)
                          THEN clock_timestamp() END,
        retired_reason = CASE WHEN NOT c.declared AND s.undeclared_since < clock_timestamp() - make_interval(secs => $1)
                              THEN 'no living agent declares it' ELSE '' END,
        decide_at = CASE WHEN NOT c.declared AND s.undeclared_since < clock_timestamp() - make_interval(secs => $1)
                         THEN NULL ELSE s.decide_at END,
        revision = CASE WHEN NOT c.declared AND s.undeclared_since < clock_timestamp() - make_interval(secs => $1)
                        THEN s.revision + 1 ELSE s.revision END
    FROM chosen c WHERE s.name = c.name
    RETURNING s.name, s.retired_at IS NOT NULL AS retired
)
SELECT name FROM marked WHERE retired ORDER BY name
