"""Archive, roll-up and audit of a made-up history: from the master to the lake, verified; then over all that is archived."""

from __future__ import annotations

import asyncio
import resource
import time
from pathlib import Path
from typing import Any

import asyncpg

from benchmarks.support.report import progress
from benchmarks.support.synthetic_history import fill_day, lower_floor
from jobmaster.master.schema.migrate import migrate
from jobmaster.pipeline.context import PipelineContext, PipelineOptions
from jobmaster.pipeline.spark.session import SessionOptions
from jobmaster.pipeline.steps.archive import archive
from jobmaster.pipeline.steps.audit import audit
from jobmaster.pipeline.steps.rollup import rollup
from jobmaster.settings.model import ClusterSettings, Limits, MasterSettings, StoreSettings


def measure(dsn: str, url: str, directory: Path, rows: int, days: int) -> dict[str, Any]:
    """Archive ``days`` days of ``rows`` jobs each, then roll up and audit all of it.

    Returns:
        ``archive_rows_per_second`` (of the median day, verification, publication and drop included), ``rollup_seconds``,
        ``audit_seconds``, ``archived_jobs``, ``lake_bytes``, ``driver_rss_mb``.
    """
    settings = ClusterSettings(
        cluster="pipeline-bench",
        master=MasterSettings(dsn=dsn),
        stores={"default": StoreSettings(url=url)},
        limits=Limits(clock_skew_seconds=1.0),
    )
    asyncio.run(migrate(dsn=dsn, schema=settings.schema_name(), cluster=settings.cluster, settings=settings.master))
    asyncio.run(_fill(settings, rows, days))
    lake = directory / "lake"
    context = PipelineContext(settings, PipelineOptions(SessionOptions("local[*]"), str(lake)))
    try:
        context.spark.range(10).count()  # the JVM is there before the clock starts
        began = time.perf_counter()
        jobs = archive(context, 2.0, keep=False).rows
        archiving = time.perf_counter() - began
        progress(f"archived {jobs:,} jobs in {archiving:.1f} s")
        began = time.perf_counter()
        rolled = rollup(context).summary["rolled_up_jobs"]
        rolling = time.perf_counter() - began
        progress(f"rolled up in {rolling:.1f} s")
        began = time.perf_counter()
        audited = audit(context, 5)
        auditing = time.perf_counter() - began
    finally:
        context.close()
    assert jobs == rolled == audited.summary["audited_jobs"] == rows * days
    assert audited.summary["audit_violations"] == 0
    return {
        "archive_rows_per_second": round(jobs / archiving),
        "archive_seconds": round(archiving, 1),
        "rollup_seconds": round(rolling, 1),
        "audit_seconds": round(auditing, 1),
        "archived_jobs": jobs,
        "lake_bytes": sum(path.stat().st_size for path in lake.rglob("*.parquet")),
        "driver_rss_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }


async def _fill(settings: ClusterSettings, rows: int, days: int) -> None:
    connection = await asyncpg.connect(
        settings.master.dsn, server_settings={"search_path": settings.schema_name(), "timezone": "UTC"}
    )
    await lower_floor(connection, days)
    for day in range(1, days + 1):
        await fill_day(connection, day, rows)
    await connection.execute("VACUUM ANALYZE job; ", timeout=3600)
    await connection.close()
