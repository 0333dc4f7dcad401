-- flapping_hosts: hosts that are cordoned because their agents die again and again
-- in: $1 integer deaths from which a host is cordoned (0: never)
-- in: $2 double precision for how long, seconds after the last death
-- out: host text, deaths bigint, left_seconds double precision
-- move: nothing
-- fence: none
-- index: none; the table of agents is small
SELECT host, deaths, left_seconds FROM flapping_hosts($1::integer, $2::double precision) ORDER BY host
