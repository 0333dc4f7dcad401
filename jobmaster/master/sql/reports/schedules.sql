-- schedules: schedules that fire, whether a living agent has their handler and their lane has a bucket, and for how long a
--      decision is overdue
-- out: name text, handler text, lane text, served boolean, lane_served boolean, late_seconds double precision (0: in time),
--      hides boolean (it was put by the API, and a living agent declares one of this name, which is not used)
-- move: nothing
-- fence: none
-- index: none: the tables of schedules and agents are small
SELECT s.name, s.handler, s.lane,
       EXISTS (SELECT FROM bucket b WHERE b.lane = s.lane AND b.state IN ('ACTIVE', 'FROZEN')) AS lane_served,
       EXISTS (SELECT FROM agent a WHERE a.state IN ('ACTIVE', 'STOPPING') AND s.handler = ANY (a.handlers)) AS served,
       greatest(extract(epoch FROM clock_timestamp() - s.decide_at), 0)::double precision AS late_seconds,
       s.source = 'api' AND s.name IN (SELECT unnest(a.schedules) FROM agent a WHERE a.state IN ('ACTIVE', 'STOPPING')) AS hides
FROM schedule s
WHERE s.decide_at IS NOT NULL
ORDER BY s.name
