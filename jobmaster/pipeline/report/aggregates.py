"""Aggregates of a history by hour. Pure: frames in, frames out; with columns of ``jobs`` and ``attempts`` of the data source.

Jobs are counted when they were created (``submitted``) and when they ended, attempts when they were recorded, so a job may
touch several days; a day is right only when every job and attempt that touches it is in the frames.

Jobs come in parts (the lake's, the master's) that are summed up apart: Spark copies every row on its way into a union.
Hours are numbers until the sums are made: independent of the session's time zone, and without calendar functions per row.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from jobmaster.model.job import AttemptOutcome, JobState
from jobmaster.pipeline.lake.full_history import union_all
from jobmaster.pipeline.report.histograms import bin_of

SUBMITTED = "submitted"
COUNTS = (
    SUBMITTED, "succeeded", "failed", "cancelled", "expired", "rescued", "retried", "timed_out", "lost", "refused",
)  # fmt: skip
"""Columns of the throughput. ``rescued``: how often jobs that have ended had been brought back from a dead agent, with a
row or without. The last four count attempts: failed ones that were tried again, those of them that ran out of time,
those that a dead agent left behind and that had a row, and late writes that were refused."""
GROUPS = ("lane", "priority", "handler")
_STATES = {state.value.lower(): state.value for state in (
    JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED, JobState.EXPIRED,
)}  # fmt: skip
_LATENCIES = ("waiting", "running", "total")
_SUMS = ("ran_us", "waited_us")
_RESCUES = "rescues"
_HOUR_US = 3_600_000_000
_BROADCAST_ROWS_MAX = 300_000
"""Maximum of attempts to broadcast, some 60 MB; with more, all jobs are shuffled by id."""


def throughput(jobs: Sequence[DataFrame], attempts: DataFrame, attempt_rows: int, owners: DataFrame) -> DataFrame:
    """Counts by hour, lane, priority, handler, agent and bucket.

    Args:
        jobs: parts of the history without common jobs.
        attempt_rows: number of attempts; with 0 the ids of jobs are not read.
        owners: ``bucket_id, bucket_epoch, agent``; small.

    Returns:
        ``day, hour, lane, priority, handler, agent, bucket_id``, the ``COUNTS``, ``ran_us``, ``waited_us`` (sums).
    """
    events = [_moments(_tally(part)) for part in jobs]
    if attempt_rows:
        small = attempt_rows <= _BROADCAST_ROWS_MAX
        events += [_attempts(part, F.broadcast(attempts) if small else attempts) for part in jobs]
    return (
        # Aggregate by hour before the join with owners: the join then has few rows.
        union_all(events)
        .groupBy("hour", *GROUPS, "bucket_id", "bucket_epoch")
        .agg(*(F.sum(name).alias(name) for name in (*COUNTS, *_SUMS)))
        .join(F.broadcast(owners), ["bucket_id", "bucket_epoch"], "left")
        .select(_day(), _time(), *GROUPS, "agent", "bucket_id", *COUNTS, *_SUMS)
    )


def latencies(jobs: Sequence[DataFrame]) -> DataFrame:
    """Histograms of jobs that ran, by hour of the end, lane, priority and handler.

    Args:
        jobs: parts of the history without common jobs.

    Returns:
        ``day, hour, lane, priority, handler, metric`` (``waiting``, ``running``, ``total``), ``bin``, ``jobs``.
    """
    return (
        union_all([_bins(part) for part in jobs])
        .groupBy("hour", *GROUPS, "metric", "bin")
        .agg(F.sum("jobs").alias("jobs"))
        .select(_day(), _time(), *GROUPS, "metric", "bin", "jobs")
    )


def grown(old: DataFrame, new: DataFrame) -> DataFrame:
    """Aggregates of days whose history is incomplete: for each hour and group the greater of two counts.

    Of equal counts the new one is used. A history only grows, so the smaller count misses discarded jobs.

    Args:
        old: the former counts, as a result of `throughput` or `latencies`.
        new: the counts of the remaining history.
    """
    what = [name for name in ("bucket_id", "metric") if name in new.columns]
    counts = [name for name in (*COUNTS, "jobs") if name in new.columns]
    total = reduce(Column.__add__, (F.coalesce(F.col(name), F.lit(0)) for name in counts))

    def keyed(frame: DataFrame) -> DataFrame:
        # A row without a bucket needs a key, too.
        names = ("hour", *GROUPS, *what)
        return frame.withColumn("key", F.to_json(F.struct(*names), {"ignoreNullFields": "false"}))

    def totals(frame: DataFrame, name: str) -> DataFrame:
        return keyed(frame).groupBy("key").agg(F.sum(total).alias(name))

    kept = (
        totals(old, "before")
        .join(totals(new, "after"), "key", "left")
        .where(F.col("before") > F.coalesce("after", F.lit(0)))
        .select("key")
    )
    return union_all([keyed(old).join(kept, "key", "left_semi"), keyed(new).join(kept, "key", "left_anti")]).drop("key")


def touched_days(jobs: Sequence[DataFrame], attempts: DataFrame) -> DataFrame:
    """The days to which jobs and attempts belong: column ``day``."""
    both = [part.select(_hour("created_at", "created"), _hour("ended_at", "ended")).distinct() for part in jobs]
    hours = [pairs.select(F.explode(F.array("created", "ended")).alias("hour")) for pairs in both]
    return union_all([*hours, attempts.select(_hour("at", "hour"))]).where("hour IS NOT NULL").select(_day()).distinct()


def _hour(column: str, name: str) -> Column:
    """Hours since 1970, UTC."""
    return F.expr(f"unix_micros({column}) DIV {_HOUR_US}").alias(name)


def _time() -> Column:
    return F.timestamp_micros(F.col("hour") * F.lit(_HOUR_US)).alias("hour")


def _day() -> Column:
    return F.expr("date_from_unix_date(CAST(hour DIV 24 AS INT))").alias("day")


def _tally(jobs: DataFrame) -> DataFrame:
    """Group jobs by everything that is counted: one pass over the jobs, few rows out."""
    sums = (F.sum(F.coalesce(F.col(name), F.lit(0))).alias(name) for name in (*_SUMS, _RESCUES))
    same = (_hour("created_at", "created"), _hour("ended_at", "ended"), "state", *GROUPS, "bucket_id", "bucket_epoch")
    return jobs.groupBy(*same).agg(F.count("*").alias("jobs"), *sums)


def _moments(tally: DataFrame) -> DataFrame:
    """Rows of the throughput: a submission and, if there was one, an end for each row of a tally."""
    ends = F.col("ends")
    counts = [F.when(~ends, F.col("jobs")).otherwise(0).alias(SUBMITTED)]
    for name in COUNTS[1:]:
        ended = ends & (F.col("state") == _STATES[name]) if name in _STATES else ends & F.lit(name == "rescued")
        counts.append(F.when(ended, F.col("jobs" if name in _STATES else _RESCUES)).otherwise(0).alias(name))
    return (
        tally.withColumn("ends", F.explode(F.array(F.lit(False), F.lit(True))))
        .where(~ends | F.col("ended").isNotNull())
        .select(
            F.when(ends, F.col("ended")).otherwise(F.col("created")).alias("hour"),
            *GROUPS,
            *(F.when(ends, F.col(name)).alias(name) for name in ("bucket_id", "bucket_epoch")),
            *counts,
            *(F.when(ends, F.col(name)).otherwise(0).alias(name) for name in _SUMS),
        )
    )


def _bins(jobs: DataFrame) -> DataFrame:
    """``hour, lane, priority, handler, metric, bin, jobs`` of one part."""
    # Start of the total time: the due time of a job that ran once, else its creation, for a retry and a rescue change it.
    once = (F.col("attempt") <= 1) & (F.col("rescues") == 0)
    since = F.when(once, F.coalesce("due_at", "created_at")).otherwise(F.col("created_at"))
    total = F.unix_micros("ended_at") - F.unix_micros(since)
    values = zip(_LATENCIES, (F.col("waited_us"), F.col("ran_us"), total), strict=True)
    ran = jobs.where(F.col("state").isin(JobState.SUCCEEDED.value, JobState.FAILED.value)).where("ran_us IS NOT NULL")
    return (
        ran.select(_hour("ended_at", "hour"), *GROUPS, *(bin_of(value).alias(name) for name, value in values))
        .unpivot(["hour", *GROUPS], list(_LATENCIES), "metric", "bin")
        .where("bin IS NOT NULL")
        .groupBy("hour", *GROUPS, "metric", "bin")
        .agg(F.count("*").alias("jobs"))
    )


def _attempts(jobs: DataFrame, attempts: DataFrame) -> DataFrame:
    """Rows of the throughput, one for each attempt whose job is in this part."""
    outcome = F.col("outcome")
    flags = {
        "retried": outcome.isin(AttemptOutcome.FAILED.value, AttemptOutcome.TIMED_OUT.value),
        "timed_out": outcome == AttemptOutcome.TIMED_OUT.value,
        "lost": outcome == AttemptOutcome.LOST.value,
        "refused": F.col("refused_at").isNotNull(),
    }
    nothing = F.lit(0).cast("long")
    counts = ((flags[name].cast("long") if name in flags else nothing).alias(name) for name in COUNTS)
    ran = F.coalesce("ran_us", F.lit(0)).alias("ran_us")
    lines = attempts.select(
        F.col("job_id").alias("id"), _hour("at", "hour"), "bucket_id", "bucket_epoch", *counts, ran,
        nothing.alias("waited_us"),
    )  # fmt: skip
    return jobs.select("id", *GROUPS).join(lines, "id").drop("id")
