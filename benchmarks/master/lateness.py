"""``python -m benchmarks.master.lateness``: how late jobs start: fires of schedules at one moment, or jobs over a span.

Every schedule has the same nominal time. Measured are two spans. The first is from the first to the last of their jobs in the
master, which makes them a lead before their time. The second is from the nominal time to the start of each handler. A handler
records its start itself, as the result of its job.

With ``--jobs`` so many jobs are held in the master before the first is due, and their due times are spread evenly over the
seconds of ``--over``.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import click

from benchmarks.latency import quantiles
from benchmarks.support.measured_cluster import MeasuredCluster, measured_cluster
from benchmarks.support.report import output_options, progress, show
from jobmaster.master.master import Master
from jobmaster.model.schedule import LEAD_SECONDS, Overlap, Schedule
from jobmaster.rules.recurrence import next_fire_us

_AHEAD_SECONDS = 20.0
"""From the last schedule put to the moment at which their jobs can be made."""
_PATIENCE_SECONDS = 120.0
_FILL_SECONDS = 10.0
_FILLED_PER_SECOND = 10_000
"""A rate at which rows are filled in on slow machines; none of them may be due before all are there."""
_HANDLER = "bench.stamp"
_HELD = """
    INSERT INTO job (id, state, priority, lane, handler, token, due_at, args)
    SELECT (lpad(to_hex((extract(epoch FROM clock_timestamp()) * 1000)::bigint), 12, '0')
            || '7' || substr(md5(n::text), 1, 3) || 'b' || substr(md5('spread' || n), 1, 15))::uuid,
           'HELD', 3, 'default', $1, 1, from_us(due), convert_to(format('{"sent_us":%s}', due), 'UTF8')
    FROM generate_series(0, $2::bigint - 1) AS n, LATERAL (SELECT $3::bigint + n * $4::bigint / $2::bigint) AS at (due)
"""
_LATE = """
    SELECT count(*) AS jobs, percentile_disc(ARRAY[0.5, 0.99, 1.0]) WITHIN GROUP (ORDER BY late) AS late
    FROM (SELECT convert_from(result, 'UTF8')::bigint AS late FROM job WHERE handler = $1 AND result IS NOT NULL) AS ended
"""
_MADE = "SELECT count(*), extract(epoch FROM max(at) - min(at))::float8 FROM schedule_fire WHERE outcome = 'fired'"
_STARTED = "SELECT convert_from(result, 'UTF8')::bigint AS us FROM job WHERE handler = $1 AND result IS NOT NULL"


async def fire(measured: MeasuredCluster, schedules: int) -> dict[str, Any]:
    """Put the schedules, wait for the one moment, and read what the handlers have recorded."""
    nominal_us = time.time_ns() // 1000 + int((LEAD_SECONDS + _AHEAD_SECONDS) * 1e6)
    definitions = [
        Schedule(
            name=f"bench-{number:06}", handler=_HANDLER, expression="3600s", start_us=nominal_us, end_us=nominal_us + 1,
            overlap=Overlap.PARALLEL, args=b'{"sent_us":%d}' % nominal_us,
        )
        for number in range(schedules)
    ]  # fmt: skip
    settings = measured.settings
    master = await Master.connect(
        dsn=measured.dsn, schema=settings.schema_name(), settings=settings.master, application_name="lateness"
    )
    await master.schedules.put(definitions, next_fire_us)
    await master.close()
    if time.time_ns() // 1000 > nominal_us - int(LEAD_SECONDS * 1e6):
        raise RuntimeError("putting the schedules took longer than the time before their fire")
    connection = await measured.connect()
    try:
        end = time.monotonic() + LEAD_SECONDS + _AHEAD_SECONDS + _PATIENCE_SECONDS
        rows: list[Any] = []
        while len(rows) < schedules:
            if time.monotonic() > end:
                raise RuntimeError(f"only {len(rows)} of {schedules} jobs have started")
            await asyncio.sleep(0.5)
            rows = await connection.fetch(_STARTED, _HANDLER)
        made, seconds = await connection.fetchrow(_MADE) or (0, 0.0)
    finally:
        await connection.close()
    assert made == schedules
    return {"made_seconds": round(seconds, 3), **quantiles([row["us"] / 1000 for row in rows])}


async def spread(measured: MeasuredCluster, jobs: int, over: float) -> dict[str, Any]:
    """Hold jobs in the master, due evenly over some seconds, and read what the handlers have recorded."""
    first_us = time.time_ns() // 1000 + int((_FILL_SECONDS + jobs / _FILLED_PER_SECOND) * 1e6)
    connection = await measured.connect()
    try:
        await connection.execute(_HELD, _HANDLER, jobs, first_us, int(over * 1e6), timeout=600)
        await connection.execute("VACUUM (ANALYZE) job", timeout=600)
        if time.time_ns() // 1000 > first_us:
            raise RuntimeError("filling in the jobs took longer than the time before the first is due")
        progress(f"{jobs:,} jobs are held; they become due over {over:g} s")
        await asyncio.sleep(first_us / 1e6 + over - time.time())
        for _ in range(int(_PATIENCE_SECONDS)):
            [(ended, late)] = await connection.fetch(_LATE, _HANDLER, timeout=600)
            if ended == jobs:
                p50, p99, most = (round(us / 1000, 3) for us in late)
                return {"p50_ms": p50, "p99_ms": p99, "max_ms": most, "jobs": jobs}
            await asyncio.sleep(1.0)
    finally:
        await connection.close()
    raise RuntimeError(f"only {ended:,} of {jobs:,} jobs have ended")


def run_spread(*, jobs: int, over: float, slots: int) -> dict[str, Any]:
    """One agent with the buffers of a default configuration."""
    with measured_cluster({"agents": {"default": {"slots": slots}}}) as measured:
        measured.start_agent()
        found = asyncio.run(spread(measured, jobs, over))
        environment = asyncio.run(measured.described())
        measured.kill_agents()
    progress(f"{jobs:,} jobs over {over:g} s: p99 {found['p99_ms']} ms late")
    return {"over_seconds": over, **found, "environment": environment}


def run(*, schedules: int, slots: int) -> dict[str, Any]:
    """One agent with room for all jobs, in its memory and in its bucket."""
    overrides = {
        "agents": {"default": {"slots": slots, "bucket_buffer": schedules}},
        "thresholds": {"assigned_low_water": schedules},
    }
    with measured_cluster(overrides) as measured:
        measured.start_agent()
        found = asyncio.run(fire(measured, schedules))
        environment = asyncio.run(measured.described())
        measured.kill_agents()
    progress(f"{schedules:,} schedules: in the master within {found['made_seconds']} s, p99 {found['p99_ms']} ms late")
    return {"schedules": schedules, **found, "environment": environment}


@click.command()
@click.option("--schedules", default=10_000, show_default=True, help="Schedules with one nominal time.")
@click.option("--slots", default=50, show_default=True, help="Handlers that run at once.")
@click.option("--jobs", default=0, show_default=True, help="Instead of schedules: so many held jobs.")
@click.option("--over", default=60.0, show_default=True, help="Seconds over which their due times are spread.")
@output_options
def main(schedules: int, slots: int, jobs: int, over: float, as_json: bool, save: bool) -> None:
    """Lateness of schedules that fire at one moment, or of jobs spread over a span."""
    if jobs:
        show("lateness_spread", run_spread(jobs=jobs, over=over, slots=slots), as_json=as_json, save=save)
    else:
        show("lateness", run(schedules=schedules, slots=slots), as_json=as_json, save=save)


if __name__ == "__main__":
    main()
