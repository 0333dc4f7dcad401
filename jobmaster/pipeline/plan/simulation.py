"""The replay: simulates the arrivals and service times of the busiest hours with other numbers of buckets.

Pure: frames in, frames out. Each hour is replayed separately, after a warm-up of 15 minutes, so hours run in parallel. A job
goes to a bucket by its hash; the real placement takes the emptier of two buckets and so performs better.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from jobmaster.model.job import AttemptOutcome
from jobmaster.pipeline.report.histograms import bin_of

if TYPE_CHECKING:
    import pandas as pd

GROUP = ("lane", "priority")
_WARM_UP = "15 minutes"
WAITS = "lane string, priority string, hour timestamp, buckets int, ready_us bigint, waited_us bigint"
_RAN = [each.value for each in (AttemptOutcome.FAILED, AttemptOutcome.TIMED_OUT, AttemptOutcome.SNOOZED)]
"""Attempts that took a slot for a known time and were followed by another one."""


def arrivals(jobs: DataFrame, attempts: DataFrame) -> DataFrame:
    """Every start of a job: when it became ready, and how long it ran.

    Args:
        jobs: ``id, lane, priority, ended_at, waited_us, ran_us, bucket_id``.
        attempts: ``job_id, at, outcome, ran_us``; attempts lost with an agent have no duration and are skipped.

    Returns:
        ``id, lane, priority, ready_us, service_us``, and, for the start that concluded the job, ``measured_us`` (measured
        wait) and ``bucket_id``.
    """
    ran = jobs.where("ran_us IS NOT NULL AND waited_us IS NOT NULL AND ended_at IS NOT NULL")
    ended = ran.select(
        "id", *GROUP, (F.unix_micros("ended_at") - F.col("ran_us") - F.col("waited_us")).alias("ready_us"),
        F.col("ran_us").alias("service_us"), F.col("waited_us").alias("measured_us"), "bucket_id",
    )  # fmt: skip
    tried = attempts.where(F.col("outcome").isin(_RAN)).where("ran_us IS NOT NULL")
    again = tried.select(
        F.col("job_id").alias("id"), (F.unix_micros("at") - F.col("ran_us")).alias("ready_us"),
        F.col("ran_us").alias("service_us"), F.lit(None).cast("bigint").alias("measured_us"),
        F.lit(None).cast("string").alias("bucket_id"),
    ).join(jobs.select("id", *GROUP), "id")  # fmt: skip
    return ended.unionByName(again)


def busiest(started: DataFrame, hours: int) -> DataFrame:
    """The hours with the most work of each lane and priority: ``lane, priority, hour``."""
    by_work = Window.partitionBy(*GROUP).orderBy(F.desc("work"), "hour")
    return (
        started.groupBy(*GROUP, _hour(F.col("ready_us")).alias("hour"))
        .agg(F.sum("service_us").alias("work"))
        .withColumn("rank", F.row_number().over(by_work))
        .where(F.col("rank") <= hours)
        .select(*GROUP, "hour")
    )


def loads(started: DataFrame, hours: DataFrame) -> DataFrame:
    """Load of the busy hours, each from its first arrival to its last one.

    Returns:
        ``lane, priority, jobs, seconds, service_us, service_var, count_mean, count_var`` (the last two of arrivals a second).
    """
    within = started.withColumn("hour", _hour(F.col("ready_us"))).join(F.broadcast(hours), [*GROUP, "hour"])
    spans = (
        within.groupBy(*GROUP, "hour")
        .agg((F.max("ready_us") - F.min("ready_us")).alias("span"))
        .groupBy(*GROUP)
        .agg((F.sum(F.greatest("span", F.lit(1_000_000))) / 1e6).alias("seconds"))
    )
    services = within.groupBy(*GROUP).agg(
        F.count("*").alias("jobs"),
        F.avg("service_us").alias("service_us"),
        F.var_pop("service_us").alias("service_var"),
    )
    seconds = within.groupBy(*GROUP, F.floor(F.col("ready_us") / 1_000_000).alias("second")).agg(
        F.count("*").alias("came")
    )
    # Seconds without an arrival have no row; the division by all seconds counts them as zeros.
    counts = seconds.groupBy(*GROUP).agg(
        F.sum("came").alias("came"), F.sum(F.col("came") * F.col("came")).alias("squares")
    )
    mean = F.col("came") / F.col("seconds")
    return (
        services.join(spans, list(GROUP))
        .join(counts, list(GROUP))
        .select(*GROUP, "jobs", "seconds", "service_us", "service_var", mean.alias("count_mean"),
                (F.col("squares") / F.col("seconds") - mean * mean).alias("count_var"))
    )  # fmt: skip


def measured(started: DataFrame, hours: DataFrame) -> DataFrame:
    """Measured waits of the busy hours.

    Returns:
        ``lane, priority, day, bin, jobs`` (histogram of waits) and ``present`` (buckets that had jobs of the group in the
        median hour; the same in every row of a group).
    """
    within = started.where("measured_us IS NOT NULL").withColumn("hour", _hour(F.col("ready_us")))
    within = within.join(F.broadcast(hours), [*GROUP, "hour"])
    present = (
        within.groupBy(*GROUP, "hour")
        .agg(F.count_distinct("bucket_id").alias("buckets"))
        .groupBy(*GROUP)
        .agg(F.greatest(F.percentile_approx("buckets", 0.5), F.lit(1)).cast("int").alias("present"))
    )
    return (
        within.groupBy(*GROUP, F.to_date("hour").alias("day"), bin_of(F.col("measured_us")).alias("bin"))
        .agg(F.count("*").alias("jobs"))
        .join(F.broadcast(present), list(GROUP))
    )


def spread(started: DataFrame, hours: DataFrame, candidates: DataFrame) -> DataFrame:
    """Assign every arrival of the busy hours and their warm-up to a bucket, for every candidate.

    Args:
        candidates: ``lane, priority, buckets``.
    """
    # A job of the last quarter of an hour also belongs to the warm-up of the next hour.
    near = F.array_distinct(
        F.array(
            _hour(F.col("ready_us")), F.date_trunc("hour", _moment(F.col("ready_us")) + F.expr(f"INTERVAL {_WARM_UP}"))
        )
    )
    return (
        started.withColumn("hour", F.explode(near))
        .join(F.broadcast(hours), [*GROUP, "hour"])
        .join(F.broadcast(candidates), list(GROUP))
        .withColumn("bucket", F.pmod(F.xxhash64("id"), F.col("buckets")).cast("int"))
    )


def waits(placed: DataFrame, slots: int) -> DataFrame:
    """Simulated wait of each arrival: columns ``WAITS``. One slot: in SQL; several slots: with a heap of free times."""
    keys = [*GROUP, "hour", "buckets", "bucket"]
    if slots == 1:
        found = lindley(placed, keys)
    else:
        found = placed.select(*keys, "id", "ready_us", "service_us").groupBy(*keys).applyInPandas(_heaped(slots), WAITS)
    warm = F.col("ready_us") >= F.unix_micros("hour")
    return found.where(warm).select(*(column.split()[0] for column in WAITS.split(", ")))


def lindley(placed: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Lindley's recursion for one server, as a running sum: remaining work minus elapsed time, at least 0."""
    in_order = Window.partitionBy(*keys).orderBy("ready_us", "id")
    step = F.lag("service_us").over(in_order) - (F.col("ready_us") - F.lag("ready_us").over(in_order))
    so_far = in_order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    return (
        placed.withColumn("step", F.coalesce(step, F.lit(0)))
        .withColumn("sum", F.sum("step").over(so_far))
        .withColumn("waited_us", F.col("sum") - F.min("sum").over(so_far))
    )


def kiefer_wolfowitz(ready_us: Iterable[int], service_us: Iterable[int], servers: int) -> list[int]:
    """Waits in one queue with several servers, in order of arrival (``ready_us`` ascending)."""
    free = [0] * servers
    found = []
    for ready, service in zip(ready_us, service_us, strict=True):
        start = max(ready, free[0])
        heapq.heapreplace(free, start + service)
        found.append(start - ready)
    return found


def histogram(found: DataFrame) -> DataFrame:
    """``lane, priority, buckets, day, bin, jobs``: some hundred rows each."""
    return found.groupBy(
        *GROUP, "buckets", F.to_date("hour").alias("day"), bin_of(F.col("waited_us")).alias("bin")
    ).agg(F.count("*").alias("jobs"))


def _heaped(servers: int):  # type: ignore[no-untyped-def]  # a function of pandas frames, which are not checked
    def replay(frame: pd.DataFrame) -> pd.DataFrame:
        ordered = frame.sort_values(["ready_us", "id"])
        waited = kiefer_wolfowitz(ordered["ready_us"].tolist(), ordered["service_us"].tolist(), servers)
        ordered["waited_us"] = waited
        return ordered[["lane", "priority", "hour", "buckets", "ready_us", "waited_us"]]

    return replay


def _moment(microseconds: Column) -> Column:
    return F.timestamp_micros(microseconds)


def _hour(microseconds: Column) -> Column:
    return F.date_trunc("hour", _moment(microseconds))
