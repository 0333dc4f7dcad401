"""``python -m benchmarks.lateness``: schedules that fire at one moment, and how late their jobs start.

Every schedule has the same nominal time. Measured are two spans. The first is from the first to the last of their jobs in the
master, which makes them a lead before their time. The second is from the nominal time to the start of each handler. A handler
records its start itself, as the result of its job.
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
_HANDLER = "bench.stamp"
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
@output_options
def main(schedules: int, slots: int, as_json: bool, save: bool) -> None:
    """Lateness of schedules that fire at one moment."""
    show("lateness", run(schedules=schedules, slots=slots), as_json=as_json, save=save)


if __name__ == "__main__":
    main()
