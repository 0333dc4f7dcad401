"""The starts of jobs that a plan is made from: read from the history, and summed up by hours. Frames in, frames out.

Only jobs that were created since the beginning of the plan's history are read: other ranges of the master and files of the
lake are not opened. Jobs that were created before it and started within it are missing. Their number is about that of the
jobs that were created within it for a time after it.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from jobmaster.model.job import AttemptOutcome
from jobmaster.pipeline.plan.observed_limits import observe
from jobmaster.pipeline.report.histograms import bin_of

if TYPE_CHECKING:
    import pandas as pd

    from jobmaster.pipeline.lake.full_history import FullHistory

GROUP = ("lane", "priority")
_JOB_COLUMNS = (
    "id", *GROUP, "created_at", "due_at", "ended_at", "waited_us", "ran_us", "attempt", "rescues", "bucket_id",
    "bucket_epoch",
)  # fmt: skip
_ATTEMPT_COLUMNS = ("job_id", "at", "outcome", "ran_us")
_RAN = [each.value for each in (AttemptOutcome.FAILED, AttemptOutcome.TIMED_OUT, AttemptOutcome.SNOOZED)]
"""Attempts that took a slot for a known time and were followed by another one."""
_DAY = "/day="
_SECOND_US, _MINUTE_US = 1_000_000, 60_000_000
_BINS = "array<struct<bin:int,jobs:bigint>>"
_SUMS = (
    "lane string, priority string, hour timestamp, jobs bigint, span_us bigint, service_us double, service_squares double, "
    f"count_squares double, buckets int, waits {_BINS}, agents int, at_once double, starts_per_second double, "
    f"ahead_per_minute bigint, ahead_per_second bigint, ahead_waits {_BINS}, direct_waits {_BINS}"
)
"""Columns of `hour_sums`. Of the group: ``jobs`` (starts), ``span_us`` (from the first arrival to the last one),
``service_us`` and ``service_squares`` (sums), ``count_squares`` (sum over the seconds of the squared arrivals), ``buckets``
(that had jobs of it) and ``waits`` (histogram). Of all groups in the hour: the others; ``ahead_...`` of scheduled jobs,
``direct_waits`` of others. ``at_once`` and ``starts_per_second`` as `Observed`, NULL without waiting jobs."""


class Recorded(NamedTuple):
    """Jobs and attempts of the history."""

    jobs: DataFrame
    attempts: DataFrame


def recorded_since(history: FullHistory, first: datetime) -> Recorded:
    """Jobs that were created since then, and their attempts."""
    return Recorded(_since(history, "jobs", _JOB_COLUMNS, first), _since(history, "attempts", _ATTEMPT_COLUMNS, first))


def _since(history: FullHistory, table: str, columns: tuple[str, ...], first: datetime) -> DataFrame:
    ranges = [
        one._replace(files=tuple(file for file in one.files if _day_of(file.path) >= first.date().isoformat()))
        for one in history.archived
        if one.last >= first
    ]
    archived = history.archived_frame(table, columns, ranges)
    if table == "jobs":  # Parquet's statistics leave out the part of the first day before that moment
        archived = archived.where(F.col("created_at") >= F.lit(first))
    return archived.unionByName(history.live_frame(table, columns, {"since": first.isoformat()}))


def _day_of(path: str) -> str:
    return path.partition(_DAY)[2][:10]


def starts(recorded: Recorded) -> DataFrame:
    """Every start of a job: when it became ready, and how long it ran.

    Attempts that were lost with an agent have no duration and are left out.

    Returns:
        ``id, lane, priority, ready_us, service_us``, and, for the start that concluded the job, ``measured_us`` (measured
        wait), ``bucket_id``, ``bucket_epoch`` and ``ahead_us`` (how long before its due time the job was created; NULL for
        a job without a due time of its own, or with several starts).
    """
    ran = recorded.jobs.where("ran_us IS NOT NULL AND waited_us IS NOT NULL AND ended_at IS NOT NULL")
    once = (F.col("attempt") <= 1) & (F.col("rescues") == 0)
    ahead = F.unix_micros("due_at") - F.unix_micros("created_at")
    ended = ran.select(
        "id", *GROUP, (F.unix_micros("ended_at") - F.col("ran_us") - F.col("waited_us")).alias("ready_us"),
        F.col("ran_us").alias("service_us"), F.col("waited_us").alias("measured_us"), "bucket_id", "bucket_epoch",
        F.when(once & (ahead > 0), ahead).alias("ahead_us"),
    )  # fmt: skip
    tried = recorded.attempts.where(F.col("outcome").isin(_RAN)).where("ran_us IS NOT NULL")
    nothing = F.lit(None)
    again = tried.select(
        F.col("job_id").alias("id"), (F.unix_micros("at") - F.col("ran_us")).alias("ready_us"),
        F.col("ran_us").alias("service_us"), nothing.cast("bigint").alias("measured_us"),
        nothing.cast("string").alias("bucket_id"), nothing.cast("bigint").alias("bucket_epoch"),
        nothing.cast("bigint").alias("ahead_us"),
    ).join(recorded.jobs.select("id", *GROUP), "id")  # fmt: skip
    return ended.unionByName(again)


def hourly(started: DataFrame) -> DataFrame:
    """``lane, priority, hour, starts, service_us`` (sum): some thousand rows."""
    return started.groupBy(*GROUP, hour_of(F.col("ready_us")).alias("hour")).agg(
        F.count("*").alias("starts"), F.sum("service_us").alias("service_us")
    )


def hour_sums(started: DataFrame, hours: DataFrame, owners: DataFrame) -> DataFrame:
    """Sums of the busy hours: a row (columns ``_SUMS``) for each hour and group of which it is a busy hour.

    One pass over the starts: each further query would cost Spark more than the starts of most histories.

    Args:
        started: as from `starts`, all groups.
        hours: ``lane, priority, hour``.
        owners: ``bucket_id, bucket_epoch, agent``.
    """
    own = hours.select(*GROUP, "hour", F.lit(True).alias("counted"))
    return (
        started.withColumn("hour", hour_of(F.col("ready_us")))
        .join(F.broadcast(hours.select("hour").distinct()), "hour")
        .join(F.broadcast(own), [*GROUP, "hour"], "left")
        .join(F.broadcast(owners), ["bucket_id", "bucket_epoch"], "left")
        .withColumn("counted", F.coalesce("counted", F.lit(False)))
        .withColumn("bin", bin_of(F.col("measured_us")))
        .select(
            *GROUP, "hour", "counted", "ready_us", "service_us", "measured_us", "bin", "bucket_id", "agent", "ahead_us"
        )
        .groupBy("hour")
        .applyInPandas(_sums_of_hour, _SUMS)
    )


def _sums_of_hour(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows of one hour."""
    import pandas as pd

    began = frame["ready_us"] + frame["measured_us"].fillna(0).astype("int64")
    seen = observe(frame["ready_us"].to_numpy(), began.to_numpy(), (began + frame["service_us"]).to_numpy())
    frame["started_us"] = began
    concluded = frame[frame["measured_us"].notna()]
    agents = int(concluded["agent"].nunique())
    ahead, direct = concluded[concluded["ahead_us"].notna()], concluded[concluded["ahead_us"].isna()]
    lines = []
    for (lane, priority), mine in frame[frame["counted"]].groupby(list(GROUP)):
        ended = mine[mine["measured_us"].notna()]
        seconds = (mine["ready_us"] // _SECOND_US).value_counts()
        lines.append({
            "lane": lane, "priority": priority, "hour": frame["hour"].iat[0], "jobs": len(mine),
            "span_us": max(int(mine["ready_us"].max() - mine["ready_us"].min()), _SECOND_US),
            "service_us": float(mine["service_us"].sum()),
            "service_squares": float((mine["service_us"].astype("float64") ** 2).sum()),
            "count_squares": float((seconds**2).sum()), "buckets": int(ended["bucket_id"].nunique()),
            "waits": _bins(ended), "agents": agents,
            "at_once": seen.at_once if seen is not None else None,
            "starts_per_second": seen.starts_per_second if seen is not None else None,
            "ahead_per_minute": _most(ahead["ready_us"] // _MINUTE_US),
            "ahead_per_second": _most(ahead["started_us"] // _SECOND_US),
            "ahead_waits": _bins(ahead), "direct_waits": _bins(direct),
        })  # fmt: skip
    return pd.DataFrame(lines, columns=[column.split()[0] for column in _SUMS.split(", ")])


def _bins(frame: pd.DataFrame) -> list[dict[str, int]]:
    return [{"bin": int(bin_), "jobs": int(jobs)} for bin_, jobs in frame["bin"].value_counts().items()]


def _most(values: pd.Series) -> int:
    return int(values.value_counts().max()) if len(values) else 0


def share_later(recorded: Recorded, beyond: datetime) -> float:
    """Share of the jobs that were created for a time after the history."""
    later = F.coalesce("due_at", "created_at") >= F.lit(beyond)
    return float(recorded.jobs.agg(F.avg(later.cast("int")).alias("later")).collect()[0]["later"] or 0.0)


def hour_of(microseconds: Column) -> Column:
    """The beginning of the hour, as a timestamp."""
    return F.date_trunc("hour", F.timestamp_micros(microseconds))
