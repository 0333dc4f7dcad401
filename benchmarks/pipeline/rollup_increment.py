"""Roll-up of a day of new jobs over many old ones without a change: its cost beside the first roll-up of all of them."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import asyncpg

from benchmarks.support.report import progress
from benchmarks.support.synthetic_history import fill_day, lower_floor
from jobmaster.master.schema.migrate import migrate
from jobmaster.pipeline.context import PipelineContext, PipelineOptions
from jobmaster.pipeline.spark.session import SessionOptions
from jobmaster.pipeline.steps.rollup import rollup
from jobmaster.settings.model import ClusterSettings, MasterSettings, StoreSettings

OLD_DAYS = 5
NEW_SHARE = 100
"""One new job for so many old ones."""


def measure(dsn: str, url: str, directory: Path, rows: int) -> dict[str, Any]:
    """Roll ``rows`` old jobs of five days up, then a hundredth as many new ones of today, then nothing.

    Returns:
        ``increment_old_jobs``, ``increment_new_jobs``; ``increment_first_seconds``, ``increment_new_seconds``,
        ``increment_nothing_seconds``, each with the report.
    """
    settings = ClusterSettings(
        cluster="rollup-bench", master=MasterSettings(dsn=dsn), stores={"default": StoreSettings(url=url)}
    )
    asyncio.run(migrate(dsn=dsn, schema=settings.schema_name(), cluster=settings.cluster, settings=settings.master))
    asyncio.run(_fill(settings, list(range(1, OLD_DAYS + 1)), rows // OLD_DAYS, 1.0))
    context = PipelineContext(settings, PipelineOptions(SessionOptions("local[*]"), str(directory / "increment-lake")))
    seconds = []
    try:
        context.spark.range(10).count()  # the JVM is there before the clock starts
        for number, expected in enumerate((rows, rows // NEW_SHARE, 0)):
            if number == 1:
                asyncio.run(_fill(settings, [0], rows // NEW_SHARE, 0.001))
            began = time.perf_counter()
            rolled = rollup(context).summary["rolled_up_jobs"]
            seconds.append(round(time.perf_counter() - began, 1))
            progress(f"rolled up {rolled:,} jobs in {seconds[-1]} s")
            assert rolled >= expected
    finally:
        context.close()
    names = ("first", "new", "nothing")
    return {
        "increment_old_jobs": rows,
        "increment_new_jobs": rows // NEW_SHARE,
        **{f"increment_{name}_seconds": value for name, value in zip(names, seconds, strict=True)},
    }


async def _fill(settings: ClusterSettings, days: list[int], rows: int, rate: float) -> None:
    connection = await asyncpg.connect(
        settings.master.dsn, server_settings={"search_path": settings.schema_name(), "timezone": "UTC"}
    )
    if days != [0]:
        await lower_floor(connection, max(days))
    for day in days:
        await fill_day(connection, day, rows, rate)
    if days == [0]:
        # They end now: the synthetic day ends its jobs at its beginning.
        await connection.execute(
            "UPDATE job SET changed_at = clock_timestamp() WHERE id >= uuid_floor(date_trunc('day', now(), 'UTC'))"
        )
    await connection.execute("VACUUM ANALYZE job; ", timeout=3600)
    await connection.close()
