-- onboard_turns: due-soon jobs of tenants become assigned to a bucket, token + 1: a few of each tenant in turn, the oldest first
-- in: $1 uuid bucket
-- in: $2 bigint its epoch
-- in: $3 uuid owner
-- in: $4 text lane
-- in: $5 smallint priority
-- in: $6 double precision horizon, seconds from now
-- in: $7 integer limit
-- in: $8 text[] handlers the owner has, NULL = any: a job goes only to an agent that can run it
-- in: $9 bigint payload bytes of all rows together; the first is taken whatever it carries
-- in: $10 text[] tags that are paused, NULL = none: jobs with one of them stay
-- in: $11 text[] capabilities the owner has, NULL = all: a job that requires another one stays
-- in: $12 uuid[] trials of half-open breakers, NULL = none
-- in: $13 text[] handlers the owner has that only start as trials
-- in: $14 text name after which the tenants begin, '' = from the first
-- in: $15 integer tenants
-- in: $16 text[] tenants that have their share in the bucket: their jobs stay
-- in: $17 text[] tenants with a weight of their own
-- in: $18 integer[] their weights; the others have 1
-- out: bucket_ok boolean, found integer (due rows up to the limit, those included that carry too much), last_tenant text (NULL: no tenant follows), id uuid (NULL: no row), token integer, handler text, args bytea, due_at timestamptz, headers bytea, attempt integer, rescues integer
-- move: HELD -> ASSIGNED
-- fence: bucket lock (id, epoch, owner, ACTIVE) FOR SHARE, as in onboard; the rows are chosen without a lock and locked
--        FOR UPDATE SKIP LOCKED, where their state is compared again: two claimers never take the same row
-- index: job_of_tenant: one probe for the next tenant, and one range for each tenant, of twice the rows that it can get; job_pkey for the lock
--        and for the update. A tenant without a due job costs its two probes
WITH RECURSIVE b AS MATERIALIZED (
    SELECT 1 FROM bucket
    WHERE id = $1::uuid AND epoch = $2::bigint AND owner = $3::uuid AND state = 'ACTIVE'
    FOR SHARE
), ring (tenant, place) AS (
    SELECT (SELECT tenant_of(j.headers) FROM job j
            WHERE j.state = 'HELD' AND j.lane = $4::text AND j.priority = $5::smallint
              AND position('"tenant":["'::bytea IN j.headers) > 0 AND tenant_of(j.headers) COLLATE "C" > $14::text
            ORDER BY tenant_of(j.headers) COLLATE "C" LIMIT 1), 1
    WHERE EXISTS (SELECT FROM b)
    UNION ALL
    SELECT (SELECT tenant_of(j.headers) FROM job j
            WHERE j.state = 'HELD' AND j.lane = $4 AND j.priority = $5
              AND position('"tenant":["'::bytea IN j.headers) > 0 AND tenant_of(j.headers) COLLATE "C" > r.tenant
            ORDER BY tenant_of(j.headers) COLLATE "C" LIMIT 1), r.place + 1
    FROM ring r
    WHERE r.tenant IS NOT NULL AND r.place < $15::integer
), weighted AS (
    SELECT r.tenant, r.place, coalesce(w.weight, 1) AS weight, count(*) OVER ()::integer AS tenants
    FROM ring r LEFT JOIN unnest($17::text[], $18::integer[]) AS w (tenant, weight) ON w.tenant = r.tenant
    WHERE r.tenant IS NOT NULL AND r.tenant <> ALL ($16::text[])
), candidate AS MATERIALIZED (
    SELECT c.id, (row_number() OVER (PARTITION BY w.tenant ORDER BY c.due_at, c.id) - 1) / w.weight AS turn, w.place, c.due_at
    FROM weighted w
    CROSS JOIN LATERAL (
        SELECT j.id, j.due_at FROM job j
        WHERE j.state = 'HELD' AND j.lane = $4 AND j.priority = $5
          AND position('"tenant":["'::bytea IN j.headers) > 0 AND tenant_of(j.headers) COLLATE "C" = w.tenant
          AND j.due_at <= statement_timestamp() + make_interval(secs => $6::double precision)
          AND NOT j.cancel_requested
          AND ($8::text[] IS NULL OR j.handler = ANY ($8) OR (j.id = ANY ($12::uuid[]) AND j.handler = ANY ($13::text[])))
          AND ($10::text[] IS NULL OR NOT has_tag(j.headers, $10))
          AND ($11::text[] IS NULL OR substring(j.headers FROM 1 FOR 13) <> '{"requires":['::bytea
               OR required_words(j.headers) <@ $11)
        ORDER BY j.due_at, j.id
        LIMIT least($7::integer, greatest(w.weight, 2 * $7 / w.tenants))
    ) AS c
), chosen AS (
    SELECT id, turn, place, due_at FROM candidate ORDER BY turn, place, due_at, id LIMIT $7
), due AS MATERIALIZED (
    SELECT l.id, l.due_at, l.size, c.turn, c.place
    FROM chosen c
    CROSS JOIN LATERAL (
        SELECT j.id, j.due_at, octet_length(j.args) + octet_length(j.headers) AS size FROM job j
        WHERE j.id = c.id AND j.state = 'HELD' AND NOT j.cancel_requested
        FOR UPDATE SKIP LOCKED
    ) AS l
), fitting AS (
    SELECT d.id
    FROM (SELECT due.id, due.size, sum(due.size) OVER (ORDER BY due.turn, due.place, due.due_at, due.id) AS total FROM due) AS d
    WHERE d.total <= $9::bigint OR d.total = d.size
    ORDER BY d.id
), moved AS (
    UPDATE job j
    SET state = 'ASSIGNED', token = j.token + 1, bucket_id = $1, bucket_epoch = $2, expires_at = NULL,
        changed_at = clock_timestamp()
    FROM fitting
    WHERE j.id = fitting.id
    RETURNING j.id, j.token, j.handler, j.args, j.due_at, j.headers, j.attempt, j.rescues
)
SELECT (SELECT count(*) FROM b) > 0 AS bucket_ok, (SELECT count(*) FROM due)::integer AS found,
       (SELECT r.tenant FROM ring r WHERE r.place = $15) AS last_tenant, moved.*
FROM (SELECT) AS always LEFT JOIN moved ON true
