-- 0062 flapping hosts: which hosts have lost agents again and again.
-- programs: >= 0060

-- Hosts whose agents have been certified dead in at least deaths_min different minutes of the hour before the last death, until
-- cordon_seconds after it. Deaths of one minute count as one: a machine that restarts loses all its agents at once.
CREATE FUNCTION flapping_hosts(deaths_min integer, cordon_seconds double precision)
RETURNS TABLE (host text, deaths bigint, left_seconds double precision)
LANGUAGE sql STABLE AS $$
    WITH dead AS MATERIALIZED (
        SELECT a.host, a.ended_at
        FROM agent a
        WHERE a.state = 'DEAD' AND deaths_min > 0
          AND a.ended_at > clock_timestamp() - make_interval(secs => cordon_seconds + 3600)
    ), latest AS (
        SELECT d.host, max(d.ended_at) AS ended_at FROM dead d GROUP BY d.host
    )
    SELECT l.host, count(DISTINCT date_trunc('minute', d.ended_at)),
           extract(epoch FROM l.ended_at - clock_timestamp())::double precision + cordon_seconds
    FROM latest l
    JOIN dead d ON d.host = l.host AND d.ended_at > l.ended_at - interval '1 hour'
    WHERE l.ended_at + make_interval(secs => cordon_seconds) > clock_timestamp()
    GROUP BY l.host, l.ended_at
    HAVING count(DISTINCT date_trunc('minute', d.ended_at)) >= deaths_min
$$;
