"""A made-up history in a real master: days of jobs with attempts, filled in by the server itself.

Also what the tests of the pipeline stand on. Rows are lawful: the auditor finds nothing in them.
"""

from __future__ import annotations

import asyncpg

_LOWER_FLOOR = """
ALTER TABLE job DETACH PARTITION job_attic;
ALTER TABLE attempt DETACH PARTITION attempt_attic;
UPDATE watermark SET floor = uuid_floor(date_trunc('day', clock_timestamp(), 'UTC') - make_interval(days => {days}));
DO $$
DECLARE
    today  timestamptz := date_trunc('day', clock_timestamp(), 'UTC');
    bottom uuid := (SELECT floor FROM watermark);
    first  timestamptz := uuid_moment((SELECT lo FROM partitions_of('job') ORDER BY lo LIMIT 1));
    at     timestamptz := uuid_moment(bottom);
BEGIN
    WHILE at < first LOOP
        PERFORM make_partition('attempt', 'job_id', 'day', at, at + interval '1 day');
        PERFORM make_partition('job', 'id', 'day', at, at + interval '1 day');
        at := at + interval '1 day';
    END LOOP;
    EXECUTE format('ALTER TABLE job ATTACH PARTITION job_attic FOR VALUES FROM (MINVALUE) TO (%L)', bottom);
    EXECUTE format('ALTER TABLE attempt ATTACH PARTITION attempt_attic FOR VALUES FROM (MINVALUE) TO (%L)', bottom);
END
$$;
"""

_BUCKETS = """
INSERT INTO agent (id, name, host, pid, version, mode, store, weight, lease_seconds, state, lease_until)
SELECT ('a0000000-0000-7000-8000-00000000000' || n)::uuid, 'agent-' || n, 'host-' || n, n, '0', 'full', 'default', 1, 10,
       'RETIRED', clock_timestamp()
FROM generate_series(1, 3) AS n
ON CONFLICT DO NOTHING;
INSERT INTO bucket_event (bucket_id, from_state, to_state, epoch, actor, reason)
SELECT ('b0000000-0000-7000-8000-0000000000' || to_char(n, 'FM00'))::uuid, NULL, 'ACTIVE', 1,
       ('a0000000-0000-7000-8000-00000000000' || n % 3 + 1)::uuid, 'made'
FROM generate_series(0, 19) AS n;
"""

_FILL = """
INSERT INTO job (id, state, priority, lane, handler, token, bucket_id, bucket_epoch, attempt, rescues, changed_at,
                 waited_us, ran_us, args, headers, result, error)
SELECT id,
       CASE WHEN dice < 0.97 THEN 'SUCCEEDED' WHEN dice < 0.99 THEN 'FAILED' WHEN dice < 0.995 THEN 'CANCELLED'
            ELSE 'EXPIRED' END::job_state,
       priority, CASE WHEN n % 10 = 0 THEN 'payroll' ELSE 'default' END,
       (ARRAY['images.resize', 'mail.send', 'reports.build', 'index.file', 'billing.charge'])[1 + n % 5],
       CASE WHEN retried THEN 2 ELSE 1 END,
       ('b0000000-0000-7000-8000-0000000000' || to_char(priority * 4 - 4 + n % 4, 'FM00'))::uuid, 1,
       CASE WHEN retried THEN 2 ELSE 1 END, 0,
       at + ((waited + ran) || ' microseconds')::interval + CASE WHEN retried THEN interval '5 s' ELSE interval '0' END,
       waited, CASE WHEN dice < 0.99 THEN ran END,
       convert_to('{"path":"/data/' || n || '","size":' || n * 37 || '}', 'UTF8'),
       CASE WHEN n % 7 = 0 THEN convert_to('{"tags":["nightly"]}', 'UTF8') ELSE '' END,
       CASE WHEN dice < 0.97 THEN convert_to('{"ok":true,"bytes":' || n || '}', 'UTF8') END,
       CASE WHEN dice >= 0.97 THEN convert_to('{"type":"ValueError","message":"no such file"}', 'UTF8') END
FROM (
    SELECT n, at, dice, n % 50 = 7 AS retried, (1 + n % 5)::smallint AS priority,
           (lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0') || '7' || substr(md5(n || 'a'), 1, 3)
            || '8' || substr(md5(n || 'b'), 1, 15))::uuid AS id,
           (exp(6 + 2 * random() + n % 5))::bigint AS waited, (exp(9 + 2 * random()))::bigint AS ran
    FROM (
        SELECT n, random() AS dice,
               date_trunc('day', clock_timestamp(), 'UTC') - make_interval(days => {day})
               + ({rate} * n * 86000.0 / {rows} || ' seconds')::interval AS at
        FROM generate_series(1, {rows}) AS n
    ) AS seen
) AS made;
INSERT INTO attempt (job_id, token, bucket_id, bucket_epoch, outcome, at, ran_us, error)
SELECT id, 1, bucket_id, bucket_epoch, CASE WHEN ran_us % 3 = 0 THEN 'timed_out' ELSE 'failed' END,
       changed_at - interval '5 s' - (ran_us || ' microseconds')::interval, ran_us,
       convert_to('{"type":"TimeoutError","message":"late"}', 'UTF8')
FROM job
WHERE attempt = 2 AND ran_us IS NOT NULL
  AND id >= uuid_floor(date_trunc('day', clock_timestamp(), 'UTC') - make_interval(days => {day}))
  AND id < uuid_floor(date_trunc('day', clock_timestamp(), 'UTC') - make_interval(days => {day} - 1));
"""


async def lower_floor(connection: asyncpg.Connection[asyncpg.Record], days: int) -> None:
    """Ranges from so many days ago on, as if the cluster had lived since then."""
    await connection.execute(_LOWER_FLOOR.replace("{days}", str(int(days))))
    await connection.execute(_BUCKETS)


async def fill_day(connection: asyncpg.Connection[asyncpg.Record], day: int, rows: int, rate: float = 1.0) -> None:
    """Finished jobs that were created so many days ago.

    Args:
        connection: its search path is the cluster's schema.
        rate: share of the day in which they come.
    """
    text = _FILL
    for word, number in (("{day}", int(day)), ("{rows}", int(rows)), ("{rate}", float(rate))):
        text = text.replace(word, str(number))
    await connection.execute(text, timeout=3600)
