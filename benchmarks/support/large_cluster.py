"""A master with millions of jobs of every kind, filled by the server itself through the real tables, and agents' rows.

Final jobs of seven days (2 % failed, 1 % cancelled, 0.5 % expired) and held ones of the next thirty. The oldest job alone has
the rare values, so that a search for one of them has to look at everything.
"""

from __future__ import annotations

import asyncpg

from benchmarks.support.synthetic_history import lower_floor

DAYS = 7
HELD_SHARE = 0.05
RARE = {
    "handler": "reports.yearly", "tag": "audit", "meta.customer": "none-other", "tenant": "seldom", "error": "LostPage",
}  # fmt: skip
"""Qualifiers of the search, with the values of one job."""

_FINAL = """
INSERT INTO job (id, state, priority, lane, handler, token, bucket_id, bucket_epoch, attempt, rescues, changed_at, waited_us,
                 ran_us, args, headers, result, error)
SELECT (lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0') || '7' || substr(digest, 1, 3) || '8'
        || substr(digest, 4, 15))::uuid,
       state, priority, (ARRAY['default', 'mail', 'payroll'])[1 + n % 3], handler, 1,
       ('b0000000-0000-7000-8000-0000000000' || to_char(priority * 4 - 4 + n % 4, 'FM00'))::uuid, 1, 0, 0,
       at + interval '2 s', 500, CASE WHEN state <> 'CANCELLED' THEN 1500 END,
       convert_to('{"path":"/data/' || n || '","size":' || n * 37 || '}', 'UTF8'),
       convert_to(CASE
           WHEN rare THEN '{"tags":["audit"],"metadata":{"customer":"none-other"},"tenant":["seldom"]}'
           WHEN n % 3 = 0 THEN '{"tags":["nightly","eu"],"metadata":{"customer":"' || n % 5000 || '"}}'
           WHEN n % 3 = 1 THEN '{"tenant":["shop-' || n % 200 || '"]}'
           ELSE '' END, 'UTF8'),
       CASE WHEN state = 'SUCCEEDED' THEN convert_to('{"bytes":' || n || '}', 'UTF8') END,
       CASE WHEN state = 'FAILED' THEN convert_to(json_build_object(
           'type', CASE WHEN rare THEN 'LostPage'
                        ELSE (ARRAY['ValueError', 'ConnectionError', 'TimeoutError'])[1 + n % 3] END,
           'message', 'no answer from host ' || n, 'reason', 'error')::text, 'UTF8') END
FROM (
    SELECT n, at, rare, md5($1 || ' ' || n) AS digest, (1 + n % 5)::smallint AS priority,
           CASE WHEN rare OR n % 50 = 0 THEN 'FAILED' WHEN n % 100 = 1 THEN 'CANCELLED' WHEN n % 200 = 3 THEN 'EXPIRED'
                ELSE 'SUCCEEDED' END::job_state AS state,
           CASE WHEN rare THEN 'reports.yearly'
                ELSE (ARRAY['images.resize', 'mail.send', 'reports.build', 'index.file', 'billing.charge'])[1 + n % 5]
           END AS handler
    FROM (
        SELECT n, clock_timestamp() - make_interval(days => $1) + n * interval '86390 seconds' / $2 AS at,
               n = 1 AND $1 = {days} AS rare
        FROM generate_series(1, $2) AS n
    ) AS spread
) AS made
"""
_HELD = """
INSERT INTO job (id, state, priority, lane, handler, token, due_at, args, headers)
SELECT (lpad(to_hex((extract(epoch FROM clock_timestamp() - n * interval '{days} days' / $1) * 1000)::bigint), 12, '0')
        || '7' || substr(md5('h' || n), 1, 3)
        || '9' || substr(md5('h' || n), 4, 15))::uuid,
       'HELD', (1 + n % 5)::smallint, (ARRAY['default', 'mail', 'payroll'])[1 + n % 3], 'mail.send', 1,
       clock_timestamp() + interval '2 hours' + n * interval '30 days' / $1, convert_to('{"to":"' || n || '"}', 'UTF8'),
       convert_to('{"tags":["later"]}', 'UTF8')
FROM generate_series(1, $1) AS n
"""
_AGENTS = """
INSERT INTO agent (id, name, host, pid, version, mode, store, weight, lease_seconds, state, lease_until, lanes)
SELECT md5('agent ' || n)::uuid, 'many-' || n, 'host-' || n % 20, n, '0', 'full', 'default', 1, 3600, 'ACTIVE',
       clock_timestamp() + interval '1 hour', '{many}'
FROM generate_series(1, $1) AS n
"""
_BUCKETS = """
INSERT INTO bucket (id, store, lane, priority, state, owner)
SELECT md5('bucket ' || n)::uuid, 'default', 'many', 1 + n % 5, 'ACTIVE', md5('agent ' || 1 + n % $2)::uuid
FROM generate_series(1, $1) AS n
"""


async def fill_jobs(connection: asyncpg.Connection[asyncpg.Record], jobs: int) -> None:
    """So many jobs, with statistics of their tables.

    Args:
        connection: its search path is the cluster's schema.
    """
    await lower_floor(connection, DAYS + 1)
    held = int(jobs * HELD_SHARE)
    for day in range(DAYS, 0, -1):
        await connection.execute(_FINAL.replace("{days}", str(DAYS)), day, (jobs - held) // DAYS, timeout=3600)
    await connection.execute(_HELD.replace("{days}", str(DAYS)), held, timeout=3600)
    await connection.execute("VACUUM (ANALYZE) job", timeout=3600)
    await connection.execute("CHECKPOINT", timeout=3600)


async def fill_buckets(connection: asyncpg.Connection[asyncpg.Record], agents: int, buckets: int) -> None:
    """Rows of agents whose leases go on for an hour, and of their buckets, of which the store has nothing."""
    await connection.execute(_AGENTS, agents)
    await connection.execute(_BUCKETS, buckets, agents)
    await connection.execute("ANALYZE agent, bucket")
