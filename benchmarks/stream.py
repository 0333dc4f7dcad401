"""``python -m benchmarks.stream``: what the streams of Spark lag behind, at a given rate of jobs.

A streaming query makes rows at that rate and writes them as jobs (the sink); an agent runs them; a second query reads the
jobs that have ended (the source). Measured are two spans for each job, on one machine's clock: from the moment of its row to
the start of its handler, and from its end, as the master has recorded it, to the moment at which the second query has it.
Rows of the first seconds, in which Java compiles, are left out.

Then (``recorded``) the source alone, at a rate that no agent of this machine reaches: the server records ended jobs,
with all their columns, beside jobs that are there already, because a poll searches all of the attached ranges.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from benchmarks.latency import quantiles
from benchmarks.support.measured_cluster import MeasuredCluster, measured_cluster
from benchmarks.support.recorded_jobs import recording
from benchmarks.support.report import output_options, progress, show
from benchmarks.support.synthetic_history import fill_day, lower_floor

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

_HANDLER = "bench.stamp"
_PATIENCE_SECONDS = 120.0
_LOOK_SECONDS = 0.2
_STARTS_MAX = 5
_STARTED = """
    SELECT convert_from(result, 'UTF8')::bigint AS late_us
    FROM job WHERE handler = $1 AND result IS NOT NULL AND (convert_from(args, 'UTF8')::json->>'sent_us')::bigint >= $2
"""
_COUNT = "SELECT count(*), count(*) FILTER (WHERE result IS NOT NULL) FROM job WHERE handler = $1"


class Ended:
    """The jobs that the source has delivered: when each was recorded, and when it was there."""

    def __init__(self) -> None:
        self.moments: list[tuple[int, int]] = []
        self.batches = 0

    def take(self, batch: DataFrame, _: int) -> None:
        rows = batch.selectExpr("unix_micros(changed_at) AS ended_us").collect()
        now_us = time.time_ns() // 1000
        self.moments += [(row["ended_us"], now_us) for row in rows]
        self.batches += bool(rows)


class Delivered:
    """Number of the jobs that the source has delivered, by their lag in milliseconds."""

    def __init__(self, begin_us: int) -> None:
        self.lags: Counter[int] = Counter()
        self.jobs = 0
        self._begin_us = begin_us

    def take(self, batch: DataFrame, _: int) -> None:
        """All columns reach Spark; the driver needs no more than the milliseconds of the ends."""
        ended = batch.selectExpr("unix_micros(changed_at) div 1000 AS ended_ms").groupBy("ended_ms").count().collect()
        now_ms = time.time_ns() // 1_000_000
        for row in ended:
            self.jobs += row["count"]
            if row["ended_ms"] * 1000 >= self._begin_us:
                self.lags[now_ms - row["ended_ms"]] += row["count"]

    def quantiles(self) -> dict[str, float]:
        """As those of ``benchmarks.latency``."""
        total = self.lags.total()
        found: dict[str, float] = {}
        reached = 0
        bounds = {"p50_ms": total * 0.5, "p99_ms": total * 0.99}
        for lag, jobs in sorted(self.lags.items()):
            reached += jobs
            found |= {name: lag for name, bound in bounds.items() if name not in found and reached >= bound}
        return {**found, "max_ms": max(self.lags, default=0), "jobs": total}


def measure_recorded(
    measured: MeasuredCluster, spark: SparkSession, rate: int, timing: tuple[float, float], before: int
) -> dict[str, Any]:
    """Run the source beside a recorder.

    Args:
        timing: seconds that are measured, and seconds before that.
        before: jobs of the day before, which are there already.
    """
    seconds, warm = timing
    asyncio.run(_fill(measured, before))
    options = {"url": measured.dsn, "schema": measured.settings.schema_name()}
    recorded = spark.readStream.format("jobmaster").options(**options, startingOffsets="latest")
    delivered = Delivered(time.time_ns() // 1000 + int(warm * 1e6))
    source = _started(
        lambda: recorded.load().writeStream.foreachBatch(delivered.take).trigger(processingTime="1 second").start()
    )
    with recording(measured, rate) as recorder:
        _follow((source,), warm + seconds)
    end = time.monotonic() + _PATIENCE_SECONDS
    while delivered.jobs < recorder.jobs and time.monotonic() < end:
        _follow((source,), _LOOK_SECONDS)
    source.stop()
    if delivered.jobs != recorder.jobs:
        raise RuntimeError(f"the source has delivered {delivered.jobs} jobs, and {recorder.jobs} were recorded")
    return {
        "jobs_per_second": rate,
        "jobs_before": before,
        "recorded_jobs": recorder.jobs,
        "recorder_late_seconds": round(recorder.late_seconds, 2),
        **delivered.quantiles(),
    }


async def _fill(measured: MeasuredCluster, before: int) -> None:
    connection = await measured.connect()
    try:
        await connection.execute("SET timezone = 'UTC'")
        await lower_floor(connection, 1)
        await fill_day(connection, 1, before)
        await connection.execute("VACUUM ANALYZE job", timeout=3600)
    finally:
        await connection.close()


def measure(measured: MeasuredCluster, spark: SparkSession, rate: int, seconds: float, warm: float) -> dict[str, Any]:
    """Run both queries for some seconds at a rate; the lags of the jobs after the first ``warm`` seconds."""
    options = {"url": measured.dsn, "schema": measured.settings.schema_name()}
    ended = Ended()
    recorded = spark.readStream.format("jobmaster").options(**options, columns="changed_at", startingOffsets="latest")
    source = _started(
        lambda: recorded.load().writeStream.foreachBatch(ended.take).trigger(processingTime="1 second").start()
    )
    rows = spark.readStream.format("rate").options(rowsPerSecond=str(rate), numPartitions="1").load()
    args = "to_json(named_struct('sent_us', unix_micros(timestamp))) AS args"
    sink = (
        rows.selectExpr("value AS key", args)
        .writeStream.format("jobmaster")
        .options(**options, handler=_HANDLER, checkpointLocation=str(measured.directory / "checkpoint"))
        .trigger(processingTime="1 second")
        .start()
    )
    begin_us = time.time_ns() // 1000 + int(warm * 1e6)
    _follow((source, sink), warm + seconds)
    sink.stop()
    jobs = asyncio.run(_all_ended(measured))
    end = time.monotonic() + _PATIENCE_SECONDS
    while len(ended.moments) < jobs:
        if time.monotonic() > end:
            raise RuntimeError(f"the source has delivered {len(ended.moments)} of {jobs} jobs")
        _follow((source,), _LOOK_SECONDS)
    source.stop()
    if len(ended.moments) != jobs:
        raise RuntimeError(f"the source has delivered {len(ended.moments)} jobs, and {jobs} have ended")
    late = asyncio.run(_late(measured, begin_us))
    seen = [(now_us - ended_us) / 1000 for ended_us, now_us in ended.moments if ended_us >= begin_us]
    return {"jobs": jobs, "micro_batches": ended.batches, "sink": quantiles(late), "source": quantiles(seen)}


def _started(start: Callable[[], StreamingQuery]) -> StreamingQuery:
    """A query whose source runs: Spark gives its Python ten seconds to start."""
    for _ in range(_STARTS_MAX):
        query = start()
        end = time.monotonic() + _PATIENCE_SECONDS
        while query.isActive and not query.recentProgress and time.monotonic() < end:
            time.sleep(_LOOK_SECONDS)
        if query.isActive:
            return query
    raise RuntimeError(f"the source did not start: {query.exception()}")


def _follow(queries: tuple[StreamingQuery, ...], seconds: float) -> None:
    """Wait while all queries run."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for query in queries:
            if not query.isActive:
                raise RuntimeError(f"a query has ended: {query.exception()}")
        time.sleep(_LOOK_SECONDS)


async def _all_ended(measured: MeasuredCluster) -> int:
    """Number of the jobs, once all of them have ended."""
    connection = await measured.connect()
    try:
        end = time.monotonic() + _PATIENCE_SECONDS
        while True:
            jobs, ended = await connection.fetchrow(_COUNT, _HANDLER) or (0, 0)
            if jobs == ended:
                return int(jobs)
            if time.monotonic() > end:
                raise RuntimeError(f"{ended} of {jobs} jobs have ended")
            await asyncio.sleep(_LOOK_SECONDS)
    finally:
        await connection.close()


async def _late(measured: MeasuredCluster, begin_us: int) -> list[float]:
    connection = await measured.connect()
    try:
        return [row["late_us"] / 1000 for row in await connection.fetch(_STARTED, _HANDLER, begin_us)]
    finally:
        await connection.close()


def run(*, rates: tuple[int, int], seconds: float, warm: float, before: int) -> dict[str, Any]:
    """A private cluster with one agent, and a session of Spark with two threads.

    Args:
        rates: of the jobs that the agent runs, and of those that the server records.
        before: jobs that are there before the second part.
    """
    from jobmaster.pipeline.spark.session import SessionOptions, open_session

    rate, recorded_rate = rates
    with measured_cluster() as measured:
        measured.start_agent()
        spark = open_session(SessionOptions("local[2]", {"spark.sql.shuffle.partitions": "2"}, "benchmark"), os.environ)
        try:
            found = measure(measured, spark, rate, seconds, warm)
            progress(f"{rate} jobs/s: sink p99 {found['sink']['p99_ms']} ms, source p99 {found['source']['p99_ms']} ms")
            measured.stop_agents()
            found["recorded"] = measure_recorded(measured, spark, recorded_rate, (seconds, warm), before)
            progress(f"{recorded_rate} jobs/s recorded: source p99 {found['recorded']['p99_ms']} ms")
        finally:
            spark.stop()
        environment = asyncio.run(measured.described())
    return {"jobs_per_second": rate, "seconds": seconds, "trigger_seconds": 1, **found, "environment": environment}


@click.command()
@click.option("--rate", type=click.IntRange(1), default=500, show_default=True, help="Rows, and so jobs, a second.")
@click.option("--seconds", type=click.FloatRange(1), default=60.0, show_default=True, help="How long it is measured.")
@click.option("--warm", type=click.FloatRange(0), default=20.0, show_default=True, help="Seconds before that.")
@click.option(
    "--recorded-rate",
    type=click.IntRange(10),
    default=20_000,
    show_default=True,
    help="Jobs a second without an agent.",
)
@click.option(
    "--before", type=click.IntRange(1), default=1_000_000, show_default=True, help="Jobs that are there before those."
)
@output_options
def main(rate: int, seconds: float, warm: float, recorded_rate: int, before: int, as_json: bool, save: bool) -> None:
    """Lag of streams: from a row to the start of its job, and from the end of a job to the reader."""
    found = run(rates=(rate, recorded_rate), seconds=seconds, warm=warm, before=before)
    show("stream", found, as_json=as_json, save=save)


if __name__ == "__main__":
    main()
