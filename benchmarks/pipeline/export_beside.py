"""What an export costs others: submits at level ``master``, alone and while Spark copies all jobs with default options.

Both in turns. Spark usually has machines of its own; here it shares this one, so it has one half of the processors to itself,
and the servers and the producer have the other half (``spark_runs``), alone and beside the export. What Spark writes stays in
memory. Earlier forms let Spark run with a low priority, or only while a processor was idle: its work in the kernel, such as a
fork, still held submits up.
"""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from benchmarks.latency import quantiles
from benchmarks.support.handlers import handlers, noop
from benchmarks.support.measured_cluster import MEDIUM_ONLY, MeasuredCluster, measured_cluster
from benchmarks.support.report import progress
from benchmarks.support.synthetic_history import fill_day, lower_floor
from jobmaster.client.cluster import Cluster
from jobmaster.pipeline.spark.session import SessionOptions, open_session
from jobmaster.wiring import open_cluster

_PER_SECOND = 50
_WARM_UP = 20
_LEASES = {"lease": "600s", "renew": "10s"}
_MEMORY = Path("/dev/shm")


def measure(rows: int, turns: int, submits: int) -> dict[str, Any]:
    """Submit at an even rate in a cluster of ``rows`` jobs, alone and beside exports of all of them, in turns.

    Args:
        submits: of each turn.

    Returns:
        ``export_rows_per_second``; ``submit_alone``, ``submit_beside_export``: quantiles over all turns;
        ``submit_p99_over_alone``: the median over the turns; ``spark_runs``.

    Raises:
        click.UsageError: there is one processor only.
    """
    processors = sorted(os.sched_getaffinity(0))
    if len(processors) < 2:
        raise click.UsageError("Spark and the servers need a processor each, and there is only one")
    half = len(processors) // 2
    os.sched_setaffinity(0, processors[:half])  # servers that are started from here inherit it
    try:
        found = _beside(processors[half:], rows, turns, submits)
    finally:
        os.sched_setaffinity(0, processors)
    return {**found, "export_rows": rows, "spark_runs": f"on {len(processors) - half} of {len(processors)} processors"}


def _beside(of_spark: list[int], rows: int, turns: int, submits: int) -> dict[str, Any]:
    overrides = {"agents": {"default": {"buckets": {**MEDIUM_ONLY, "medium": 3}}}, "leases": _LEASES}
    in_memory = tempfile.TemporaryDirectory(prefix="jobmaster-bench-", dir=_MEMORY if _MEMORY.is_dir() else None)
    with in_memory as files, measured_cluster(overrides) as measured:
        asyncio.run(_fill(measured, rows))
        measured.start_agent()
        measured.signal_agents(signal.SIGSTOP)  # it takes no job, and no processor
        servers = os.sched_getaffinity(0)
        os.sched_setaffinity(0, of_spark)  # the JVM inherits it, and what the JVM starts
        spark = open_session(SessionOptions("local[2]", {}, "benchmark"), os.environ)
        try:
            export = _export(spark, measured, Path(files) / "export")
            export()  # the JVM and its Python are warm
            os.sched_setaffinity(0, servers)
            alone, beside, seconds = asyncio.run(_turns(measured, export, turns, submits))
        finally:
            spark.stop()
    ratios = [_p99(with_export) / _p99(without) for without, with_export in zip(alone, beside, strict=True)]
    return {
        "export_rows_per_second": round(rows / statistics.median(seconds)),
        "submit_alone": quantiles([one for turn in alone for one in turn]),
        "submit_beside_export": quantiles([one for turn in beside for one in turn]),
        "submit_p99_over_alone": round(statistics.median(ratios), 2),
    }


async def _fill(measured: MeasuredCluster, rows: int) -> None:
    connection = await measured.connect()
    await connection.execute("SET timezone = 'UTC'")
    await lower_floor(connection, 1)
    await fill_day(connection, 1, rows)
    await connection.execute("VACUUM ANALYZE job", timeout=3600)
    await connection.execute("CHECKPOINT", timeout=3600)
    await connection.close()


def _export(spark: Any, measured: MeasuredCluster, where: Path) -> Callable[[], None]:
    """Copy the finished jobs to Parquet, with default options."""
    options = {"url": measured.dsn, "schema": measured.settings.schema_name(), "states": "SUCCEEDED,FAILED"}
    return lambda: spark.read.format("jobmaster").options(**options).load().write.mode("overwrite").parquet(str(where))


async def _turns(
    measured: MeasuredCluster, export: Callable[[], None], turns: int, submits: int
) -> tuple[list[list[float]], list[list[float]], list[float]]:
    """Milliseconds of the submits of each turn, alone and beside an export; and how long each export took."""
    alone: list[list[float]] = []
    beside: list[list[float]] = []
    seconds: list[float] = []
    async with await open_cluster(measured.settings, handlers) as cluster:
        await _submits(cluster, _WARM_UP)
        for turn in range(turns):
            ended = threading.Event()
            taken = asyncio.create_task(asyncio.to_thread(_until_stopped, export, ended))
            # Exports follow each other until the submits have ended.
            beside.append(await _submits(cluster, submits))
            ended.set()
            seconds += await taken
            alone.append(await _submits(cluster, submits))
            progress(f"turn {turn + 1}: p99 {_p99(alone[-1]):.2f} ms alone, {_p99(beside[-1]):.2f} ms beside an export")
    return alone, beside, seconds


def _until_stopped(export: Callable[[], None], ended: threading.Event) -> list[float]:
    found = []
    while not ended.is_set():
        began = time.perf_counter()
        export()
        found.append(time.perf_counter() - began)
    return found


async def _submits(cluster: Cluster, count: int) -> list[float]:
    """Milliseconds of submits at an even rate."""
    found: list[float] = []
    began = time.perf_counter()
    for number in range(count):
        await asyncio.sleep(max(began + number / _PER_SECOND - time.perf_counter(), 0))
        sent = time.perf_counter()
        await cluster.submit(noop, {"text": "x"}, durability="master")
        found.append((time.perf_counter() - sent) * 1000)
    return found


def _p99(values: list[float]) -> float:
    return quantiles(values)["p99_ms"]
