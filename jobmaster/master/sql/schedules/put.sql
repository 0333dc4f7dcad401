-- put: definitions of schedules, new or changed; each begins with its next fire
-- in: $1 text source
-- in: $2 timestamptz start of the agent that declares them, NULL = now
-- in: $3 text[] names
-- in: $4 text[] digests
-- in: $5 bytea[] definitions (JSON, without the arguments)
-- in: $6 text[] handlers
-- in: $7 bytea[] args (JSON objects)
-- in: $8 smallint[] priorities
-- in: $9 text[] lanes
-- in: $10 text[] expressions
-- in: $11 text[] zones
-- in: $12 text[] overlap rules
-- in: $13 text[] tags, a JSON list each
-- in: $14 bigint[] next fires, microseconds since 1970, 0 = none
-- in: $15 double precision lead, seconds
-- out: name text, changed boolean, jitter double precision (until now, seconds; NULL = none)
-- move: nothing
-- fence: only a definition that was declared earlier is replaced, and not by one that it has replaced; but by any, when no living
--        agent declares it. One of code or configuration replaces none of the API, unless that is retired. All of it is read
--        again under the lock of the row. The same definition only gets the later start. A pause stays.
--        A fire that is overdue, or waits for the end of an earlier job, stays the next one: the misfire rule decides it. So does
--        that of a schedule that was retired for want of a declaring agent, for a day: these agents may only have been away.
-- index: schedule_pkey, as the arbiter
INSERT INTO schedule AS s (name, source, digest, definition, handler, args, priority, lane, expression, zone, overlap, tags,
                           declared_at, next_fire, decide_at)
SELECT name, $1::text, digest, definition, handler, args, priority, lane, expression, zone, overlap,
       ARRAY (SELECT jsonb_array_elements_text(tags::jsonb)), coalesce($2::timestamptz, clock_timestamp()),
       from_us(nullif(next_us, 0)), from_us(nullif(next_us, 0)) - make_interval(secs => $15::double precision)
FROM unnest($3::text[], $4::text[], $5::bytea[], $6::text[], $7::bytea[], $8::smallint[], $9::text[], $10::text[], $11::text[],
            $12::text[], $13::text[], $14::bigint[])
     AS new (name, digest, definition, handler, args, priority, lane, expression, zone, overlap, tags, next_us)
ORDER BY name
ON CONFLICT (name) DO UPDATE
SET source = EXCLUDED.source, digest = EXCLUDED.digest, definition = EXCLUDED.definition, handler = EXCLUDED.handler,
    args = EXCLUDED.args, priority = EXCLUDED.priority, lane = EXCLUDED.lane, expression = EXCLUDED.expression,
    zone = EXCLUDED.zone, overlap = EXCLUDED.overlap, tags = EXCLUDED.tags, declared_at = EXCLUDED.declared_at,
    undeclared_since = NULL,
    superseded = CASE WHEN s.digest = EXCLUDED.digest THEN s.superseded
                      WHEN s.retired_at IS NULL AND EXCLUDED.source <> 'api' AND s.declared_at < EXCLUDED.declared_at
                           AND EXCLUDED.digest <> ALL (s.superseded)
                      THEN (s.digest || s.superseded)[1:20]
                      ELSE '{}' END,
    revision = CASE WHEN s.digest = EXCLUDED.digest AND s.retired_at IS NULL THEN s.revision ELSE s.revision + 1 END,
    next_fire = CASE WHEN s.digest = EXCLUDED.digest AND s.retired_at IS NULL THEN s.next_fire
                     WHEN s.next_fire <= coalesce(s.paused_at, statement_timestamp()) AND (s.retired_at IS NULL OR (
                          s.retired_reason = 'no living agent declares it' AND EXCLUDED.source <> 'api'
                          AND s.retired_at > statement_timestamp() - interval '1 day')) THEN s.next_fire
                     ELSE EXCLUDED.next_fire END,
    decide_at = CASE WHEN s.digest = EXCLUDED.digest AND s.retired_at IS NULL THEN s.decide_at
                     WHEN s.paused_at IS NOT NULL THEN NULL
                     WHEN s.next_fire <= statement_timestamp() AND (s.retired_at IS NULL OR (
                          s.retired_reason = 'no living agent declares it' AND EXCLUDED.source <> 'api'
                          AND s.retired_at > statement_timestamp() - interval '1 day'))
                     THEN coalesce(s.decide_at, s.next_fire - make_interval(secs => $15))
                     ELSE EXCLUDED.decide_at END,
    last_fire = CASE WHEN s.retired_at IS NULL
                          AND (s.digest = EXCLUDED.digest OR s.next_fire <= coalesce(s.paused_at, statement_timestamp()))
                     THEN s.last_fire END,
    changed_at = CASE WHEN s.digest = EXCLUDED.digest AND s.retired_at IS NULL THEN s.changed_at ELSE clock_timestamp() END,
    retired_at = NULL, retired_reason = ''
WHERE ((s.declared_at < EXCLUDED.declared_at
        AND (s.retired_at IS NOT NULL OR EXCLUDED.source = 'api' OR EXCLUDED.digest <> ALL (s.superseded)))
       OR (s.digest <> EXCLUDED.digest AND s.retired_at IS NULL AND 'api' NOT IN (s.source, EXCLUDED.source)
           AND s.digest NOT IN (SELECT unnest(a.schedule_digests) FROM agent a WHERE a.state IN ('ACTIVE', 'STOPPING'))))
  AND (s.source = EXCLUDED.source OR s.retired_at IS NOT NULL OR 'api' NOT IN (s.source, EXCLUDED.source))
RETURNING name, changed_at >= statement_timestamp() AS changed,
          (SELECT (convert_from(former.definition, 'UTF8')::json ->> 'jitter_seconds')::double precision
           FROM schedule former WHERE former.name = s.name) AS jitter
