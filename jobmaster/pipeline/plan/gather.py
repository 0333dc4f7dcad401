"""Sums the history up with Spark: the facts of a plan, and the replay of its busiest hours as a function."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime
from functools import partial
from statistics import median_low
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql import functions as F

from jobmaster.pipeline.plan import starts
from jobmaster.pipeline.plan.facts import Facts, Replayer, busiest_hours
from jobmaster.pipeline.plan.model import Group
from jobmaster.pipeline.plan.observed_limits import Observed
from jobmaster.pipeline.plan.queueing import Load
from jobmaster.pipeline.plan.replay import replay
from jobmaster.pipeline.plan.starts import Recorded
from jobmaster.pipeline.plan.transient_threshold import ScheduledJobs
from jobmaster.pipeline.report.histograms import quantiles

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

    from jobmaster.pipeline.lake.full_history import FullHistory


class StartedJobs(NamedTuple):
    """The history that a plan is made from, as frames."""

    spark: SparkSession
    recorded: Recorded
    started: DataFrame
    as_of: datetime


def started_since(spark: SparkSession, history: FullHistory, first: datetime) -> StartedJobs:
    """What was created and started since then. The caller caches and releases ``started``."""
    recorded = starts.recorded_since(history, first)
    started = starts.starts(recorded).where(F.col("ready_us") >= int(first.timestamp() * 1e6))
    return StartedJobs(spark, recorded, started, history.as_of)


def gather(jobs: StartedJobs, owners: DataFrame, hours: int) -> tuple[Facts, Replayer]:
    """Sum the history up; the second value replays its busiest hours.

    Args:
        owners: ``bucket_id, bucket_epoch, agent``.
        hours: number of busiest hours of each group.
    """
    started = jobs.started
    counts: dict[Group, dict[datetime, float]] = {}
    work: dict[Group, dict[datetime, float]] = {}
    for row in starts.hourly(started).select("*", F.unix_seconds("hour").alias("at")).collect():
        group, hour = (row["lane"], row["priority"]), datetime.fromtimestamp(row["at"], UTC)
        counts.setdefault(group, {})[hour] = float(row["starts"])
        work.setdefault(group, {})[hour] = float(row["service_us"])
    busy_hours = {group: busiest_hours(by_hour, hours) for group, by_hour in work.items()}
    busiest = _hours_frame(jobs.spark, busy_hours)
    sums = starts.hour_sums(started, busiest, owners).withColumn("day", F.to_date("hour")).collect()
    every_hour = [hour for line in counts.values() for hour in line] or [jobs.as_of]
    facts = Facts(
        first=min(every_hour),
        last=max(every_hour),
        starts=counts,
        busy_hours=busy_hours,
        **_of_hours(sums, counts),
        later=starts.share_later(jobs.recorded, jobs.as_of),
    )
    return facts, partial(replay, jobs.spark, started, busiest)


def _of_hours(sums: Sequence[Row], groups: Collection[Group]) -> dict[str, Any]:
    """The facts that come from the busy hours."""
    by_group: dict[Group, list[Row]] = {group: [] for group in groups}
    for row in sums:
        by_group[row["lane"], row["priority"]].append(row)
    # What concerns all groups stands in each row of an hour.
    hours = {row["hour"]: row for row in sums}.values()
    observed: dict[date, list[Observed]] = {}
    for row in hours:
        if row["at_once"] is not None:
            observed.setdefault(row["day"], []).append(Observed(row["at_once"], row["starts_per_second"]))
    agents = [row["agents"] for row in hours if row["agents"]]
    return {
        "loads": {group: _load(rows) for group, rows in by_group.items()},
        "measured": {group: _daily(rows) for group, rows in by_group.items()},
        "buckets": {group: max(1, _median([row["buckets"] for row in rows])) for group, rows in by_group.items()},
        "agents": _median(agents) if agents else None,
        "observed": observed,
        "scheduled": ScheduledJobs(
            jobs=sum(jobs for row in hours for _, jobs in row["ahead_waits"]),
            per_minute=max((row["ahead_per_minute"] for row in hours), default=0),
            per_second=max((row["ahead_per_second"] for row in hours), default=0),
            wait_us=_p99(hours, "ahead_waits"),
            direct_wait_us=_p99(hours, "direct_waits"),
        ),
    }


def _median(values: Sequence[int]) -> int:
    """The lower one of the two in the middle."""
    return int(median_low(values)) if values else 0


def _daily(rows: Sequence[Row]) -> dict[date, list[tuple[int, int]]]:
    found: dict[date, list[tuple[int, int]]] = {}
    for row in rows:
        if row["waits"]:
            found.setdefault(row["day"], []).extend((bin_, jobs) for bin_, jobs in row["waits"])
    return found


def _p99(rows: Iterable[Row], column: str) -> float:
    return quantiles([(bin_, jobs) for row in rows for bin_, jobs in row[column]], (0.99,))[0] or 0.0


def between(jobs: StartedJobs, first: datetime, beyond: datetime) -> StartedJobs:
    """The part that became ready from ``first`` to ``beyond`` (exclusive)."""
    low, high = (int(moment.timestamp() * 1e6) for moment in (first, beyond))
    return jobs._replace(started=jobs.started.where(f"ready_us >= {low} AND ready_us < {high}"))


def days_of(jobs: StartedJobs) -> list[date]:
    """Days with a start."""
    rows = jobs.started.select(F.to_date(F.timestamp_micros("ready_us")).alias("day")).distinct().collect()
    return sorted(row["day"] for row in rows)


def _load(rows: Sequence[Row]) -> Load:
    jobs, seconds = sum(row["jobs"] for row in rows), sum(row["span_us"] for row in rows) / 1e6
    if not jobs:
        return Load(per_second=0.0, service_seconds=1e-6, service_cv2=0.0, arrival_cv2=1.0)
    mean = sum(row["service_us"] for row in rows) / jobs or 1.0
    variance = max(0.0, sum(row["service_squares"] for row in rows) / jobs - mean**2)
    # Seconds without an arrival have no square; the division by all seconds counts them as zeros.
    rate = jobs / seconds
    spread = max(0.0, sum(row["count_squares"] for row in rows) / seconds - rate**2)
    return Load(per_second=rate, service_seconds=mean / 1e6, service_cv2=variance / mean**2, arrival_cv2=spread / rate)


def _hours_frame(spark: SparkSession, hours: Mapping[Group, Collection[datetime]]) -> DataFrame:
    """``lane, priority, hour``."""
    rows = [(*group, int(hour.timestamp())) for group, moments in hours.items() for hour in sorted(moments)]
    frame = spark.createDataFrame(rows, "lane string, priority string, at bigint")
    return frame.selectExpr("lane", "priority", "timestamp_seconds(at) AS hour")
