"""Roll-up of a day of new jobs over many archived ones without a change: its cost beside the first roll-up of all of them."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import asyncpg

from benchmarks.pipeline.archived_days import copy_days
from benchmarks.support.report import progress
from benchmarks.support.synthetic_history import fill_day, lower_floor
from jobmaster.master.schema.migrate import migrate
from jobmaster.pipeline.context import PipelineContext, PipelineOptions
from jobmaster.pipeline.spark.session import SessionOptions
from jobmaster.pipeline.steps.archive import archive
from jobmaster.pipeline.steps.rollup import rollup
from jobmaster.settings.model import ClusterSettings, Limits, MasterSettings, StoreSettings

_MANY, _MANY_DAYS, _FEW_DAYS = 10_000_000, 100, 5
"""From so many jobs on the history has a hundred days."""


def old_days(rows: int) -> int:
    """Days of a history of so many old jobs."""
    return _MANY_DAYS if rows >= _MANY else _FEW_DAYS


def measure(dsn: str, url: str, directory: Path, rows: int) -> dict[str, Any]:
    """Roll ``rows`` archived jobs of several days up, then one more day of as many jobs in the master, then nothing.

    The archiver archives one day; the others are copies of it.

    Returns:
        ``increment_old_jobs``, ``increment_new_jobs``; ``increment_first_seconds``, ``increment_new_seconds``,
        ``increment_nothing_seconds``, each with the report.
    """
    settings = ClusterSettings(
        cluster="rollup-bench",
        master=MasterSettings(dsn=dsn),
        stores={"default": StoreSettings(url=url)},
        limits=Limits(clock_skew_seconds=1.0),
    )
    asyncio.run(migrate(dsn=dsn, schema=settings.schema_name(), cluster=settings.cluster, settings=settings.master))
    days, lake = old_days(rows), directory / "increment-lake"
    new = rows // days
    context = PipelineContext(settings, PipelineOptions(SessionOptions("local[*]"), str(lake)))
    seconds = []
    try:
        asyncio.run(_fill(settings, 1, new))
        assert archive(context, 2.0, keep=False).rows == new
        asyncio.run(_copy(settings, lake, days))
        progress(f"{days} days of {new:,} jobs are archived")
        for number, expected in enumerate((new * days, new, 0)):
            if number == 1:
                asyncio.run(_fill(settings, 0, new))
            began = time.perf_counter()
            rolled = rollup(context).summary["rolled_up_jobs"]
            seconds.append(round(time.perf_counter() - began, 1))
            progress(f"rolled up {rolled:,} jobs in {seconds[-1]} s")
            assert rolled == expected, (rolled, expected)
    finally:
        context.close()
    names = ("first", "new", "nothing")
    return {
        "increment_old_jobs": new * days,
        "increment_new_jobs": new,
        **{f"increment_{name}_seconds": value for name, value in zip(names, seconds, strict=True)},
    }


async def _fill(settings: ClusterSettings, day: int, rows: int) -> None:
    connection = await _connect(settings)
    if day:
        await lower_floor(connection, day)
        await fill_day(connection, day, rows)
    else:
        await fill_day(connection, day, rows, 0.001)
        # They end now: the synthetic day ends its jobs at its beginning.
        await connection.execute(
            "UPDATE job SET changed_at = clock_timestamp() WHERE id >= uuid_floor(date_trunc('day', now(), 'UTC'))"
        )
    await connection.execute("VACUUM ANALYZE job; ", timeout=3600)
    await connection.close()


async def _copy(settings: ClusterSettings, lake: Path, days: int) -> None:
    connection = await _connect(settings)
    await copy_days(connection, lake, range(1, days))
    await connection.close()


async def _connect(settings: ClusterSettings) -> asyncpg.Connection[asyncpg.Record]:
    return await asyncpg.connect(
        settings.master.dsn, server_settings={"search_path": settings.schema_name(), "timezone": "UTC"}
    )
