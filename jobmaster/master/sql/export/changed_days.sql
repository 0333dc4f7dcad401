-- changed_days: the days to which jobs and attempts of a range of ids belong, and whether these have changed since a moment
-- in: $1 bigint lowest time of an id, microseconds since 1970, NULL = from the lowest id on
-- in: $2 bigint highest time, itself outside
-- in: $3 bigint moment, microseconds since 1970
-- out: changed boolean, created bigint (days since 1970, UTC; NULL: not changed, or an attempt), ended bigint (NULL: not ended)
-- move: nothing
-- fence: none, it reads; the snapshot of the caller's transaction
-- index: none, the whole of the partitions that the range meets; a row costs the server less than it costs to hand it over
SELECT changed, created, ended
FROM (
    SELECT changed_at >= from_us($3::bigint) AS changed,
           CASE WHEN changed_at >= from_us($3::bigint) THEN floor(extract(epoch FROM uuid_moment(id)) / 86400)::bigint END AS created,
           CASE WHEN state IN ('SUCCEEDED', 'FAILED', 'CANCELLED', 'EXPIRED')
                THEN floor(extract(epoch FROM changed_at) / 86400)::bigint END AS ended
    FROM job_kept
    WHERE id >= coalesce(uuid_floor(from_us($1::bigint)), '00000000-0000-0000-0000-000000000000')
      AND id < uuid_floor(from_us($2::bigint))
    UNION ALL
    SELECT greatest(at, refused_at) >= from_us($3::bigint), NULL, floor(extract(epoch FROM at) / 86400)::bigint
    FROM attempt_kept
    WHERE job_id >= coalesce(uuid_floor(from_us($1::bigint)), '00000000-0000-0000-0000-000000000000')
      AND job_id < uuid_floor(from_us($2::bigint))
) AS recorded
GROUP BY changed, created, ended
