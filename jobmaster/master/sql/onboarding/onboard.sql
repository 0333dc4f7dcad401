-- onboard: the oldest due-soon jobs of a lane and priority become assigned to a bucket, token + 1
-- in: $1 uuid bucket
-- in: $2 bigint its epoch
-- in: $3 uuid owner
-- in: $4 text lane
-- in: $5 smallint priority
-- in: $6 double precision horizon, seconds from now
-- in: $7 integer limit
-- in: $8 bigint due time below which nothing is looked for, microseconds since 1970, 0 = from the oldest
-- in: $9 text[] handlers the owner has, NULL = any: a job goes only to an agent that can run it
-- in: $10 bigint payload bytes of all rows together; the oldest is taken whatever it carries
-- in: $11 text[] tags that are paused, NULL = none: jobs with one of them stay
-- in: $12 text[] capabilities the owner has, NULL = all: a job that requires another one stays
-- in: $13 uuid[] trials of half-open breakers, NULL = none
-- in: $14 text[] handlers the owner has that only start as trials
-- in: $15 boolean only jobs without a tenant
-- out: bucket_ok boolean, found integer (due rows up to the limit, those included that carry too much), id uuid (NULL: no row), token integer, handler text, args bytea, due_at timestamptz, headers bytea, attempt integer, rescues integer
-- move: HELD -> ASSIGNED
-- fence: bucket lock (id, epoch, owner, ACTIVE) FOR SHARE, taken before the scan; FOR UPDATE SKIP LOCKED: two claimers
--        never take the same row. MATERIALIZED, or the limit may be applied more than once. The payload is summed over the
--        limited rows alone, by sizes that stand in the rows: nothing is read from their toast for it.
-- index: job_due, read in order up to the limit (statement_timestamp(), because a volatile clock is no index condition),
--        from a given due time on: before it lie the dead entries of what was just onboarded, until the next vacuum;
--        job_pkey for the update, one partition a row. The rows are updated in id order, because neighbours by id lie in the
--        same pages of the table and of job_pkey. required_words is called for headers that begin with such words alone: a
--        call takes longer than the other conditions. The sizes are integers, because a sum of bigint is numeric
WITH b AS MATERIALIZED (
    SELECT 1 FROM bucket
    WHERE id = $1::uuid AND epoch = $2::bigint AND owner = $3::uuid AND state = 'ACTIVE'
    FOR SHARE
), due AS MATERIALIZED (
    SELECT j.id, j.due_at, octet_length(j.args) + octet_length(j.headers) AS size FROM job j
    WHERE j.state = 'HELD' AND j.lane = $4::text AND j.priority = $5::smallint
      AND j.due_at <= statement_timestamp() + make_interval(secs => $6::double precision)
      AND j.due_at >= from_us($8::bigint)
      AND NOT j.cancel_requested
      AND ($9::text[] IS NULL OR j.handler = ANY ($9) OR (j.id = ANY ($13::uuid[]) AND j.handler = ANY ($14::text[])))
      AND ($11::text[] IS NULL OR NOT has_tag(j.headers, $11))
      AND ($12::text[] IS NULL OR substring(j.headers FROM 1 FOR 13) <> '{"requires":['::bytea
           OR required_words(j.headers) <@ $12)
      AND NOT ($15::boolean AND tenant_of(j.headers) IS NOT NULL)
      AND EXISTS (SELECT FROM b)
    ORDER BY j.due_at
    LIMIT $7::integer
    FOR UPDATE SKIP LOCKED
), fitting AS (
    SELECT d.id FROM (SELECT due.id, due.size, sum(due.size) OVER (ORDER BY due.due_at, due.id) AS total FROM due) AS d
    WHERE d.total <= $10::bigint OR d.total = d.size
    ORDER BY d.id
), moved AS (
    UPDATE job j
    SET state = 'ASSIGNED', token = j.token + 1, bucket_id = $1, bucket_epoch = $2, expires_at = NULL,
        changed_at = clock_timestamp()
    FROM fitting
    WHERE j.id = fitting.id
    RETURNING j.id, j.token, j.handler, j.args, j.due_at, j.headers, j.attempt, j.rescues
)
SELECT (SELECT count(*) FROM b) > 0 AS bucket_ok, (SELECT count(*) FROM due)::integer AS found, moved.*
FROM (SELECT) AS always LEFT JOIN moved ON true
