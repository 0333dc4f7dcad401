"""Aggregates of a history by hour, minute and day. Pure: frames in, frames out; with columns of ``jobs`` and ``attempts`` of
the data source.

Jobs are counted when they were created (``submitted``) and when they ended, attempts when they were recorded, so a job may
touch several days; a day is right only when every job and attempt that touches it is in the frames.

Jobs come in parts (the lake's, the master's) that are summed up apart: Spark copies every row on its way into a union.
Hours are numbers until the sums are made: independent of the session's time zone, and without calendar functions per row.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from jobmaster.model.flow.tenant import NO_TENANT
from jobmaster.model.job import AttemptOutcome, JobState
from jobmaster.pipeline.lake.full_history import union_all
from jobmaster.pipeline.report.histograms import bin_of
from jobmaster.rules.failure_group import LINE_CHARS_MAX

SUBMITTED = "submitted"
COUNTS = (
    SUBMITTED, "succeeded", "failed", "cancelled", "expired", "rescued", "retried", "timed_out", "lost", "refused",
)  # fmt: skip
"""Columns of the throughput. ``rescued``: how often jobs that have ended had been brought back from a dead agent, with a
row or without. The last four count attempts: failed ones that were tried again, those of them that ran out of time,
those that a dead agent left behind and that had a row, and late writes that were refused."""
GROUPS = ("lane", "priority", "handler")
ENDED = COUNTS[1:5]
"""The counts of jobs that have ended."""
_STATES = {state.value.lower(): state.value for state in (
    JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED, JobState.EXPIRED,
)}  # fmt: skip
_LATENCIES = ("waiting", "running", "total")
_SUMS = ("ran_us", "waited_us")
_RESCUES = "rescues"
_BROADCAST_ROWS_MAX = 300_000
"""Maximum of attempts to broadcast, some 60 MB; with more, all jobs are shuffled by id."""
_DAY_US = 86_400_000_000


class Grain(NamedTuple):
    """The time that one row of counts stands for."""

    column: str
    microseconds: int


HOUR, MINUTE = Grain("hour", 3_600_000_000), Grain("minute", 60_000_000)


class Tally(NamedTuple):
    """The jobs and attempts of a history, grouped by everything that is counted; few rows."""

    grain: Grain
    jobs: Sequence[DataFrame]
    """One frame for each part of the history."""
    attempts: Sequence[DataFrame]


def with_facts(jobs: DataFrame) -> DataFrame:
    """Jobs with ``tenant``, ``error_type`` and ``message`` (of those that failed) in place of ``headers`` and ``error``."""
    # Most headers name no tenant: the search for a word costs less than parsing.
    named = F.when(F.contains("headers", F.lit('"tenant"')), F.get_json_object("headers", "$.tenant[0]"))
    failed = F.col("state") == JobState.FAILED.value
    return jobs.withColumns({
        "tenant": F.coalesce(named, F.lit(NO_TENANT)),
        "error_type": F.when(failed, F.get_json_object("error", "$.type")),
        "message": F.when(failed, F.coalesce(_message(), F.lit(""))),
    }).drop("headers", "error")  # fmt: skip


def attempts_of(jobs: Sequence[DataFrame], attempts: DataFrame, attempt_rows: int) -> list[DataFrame]:
    """Attempts with lane, priority, handler and tenant of their jobs; ``error_type`` and ``message`` in place of ``error``.

    Args:
        jobs: parts of the history without common jobs; a frame is returned for each.
        attempt_rows: number of attempts; with 0 the ids of jobs are not read.
    """
    if not attempt_rows:
        return []
    lines = attempts.withColumns({
        "id": F.col("job_id"),
        "error_type": F.get_json_object("error", "$.type"),
        "message": F.when(F.col("error").isNotNull(), F.coalesce(_message(), F.lit(""))),
    }).drop("job_id", "error")  # fmt: skip
    small = F.broadcast(lines) if attempt_rows <= _BROADCAST_ROWS_MAX else lines
    return [part.select("id", *GROUPS, "tenant").join(small, "id") for part in jobs]


def tally(jobs: Sequence[DataFrame], attempts: Sequence[DataFrame], grain: Grain = HOUR) -> Tally:
    """Group jobs and attempts: one pass over each part.

    Args:
        jobs: parts of the history, as of ``with_facts``.
        attempts: as of ``attempts_of``.
    """
    return Tally(grain, [_jobs(part, grain) for part in jobs], [_attempts(part, grain) for part in attempts])


def throughput(counted: Tally, owners: DataFrame) -> DataFrame:
    """Counts by hour (or minute), lane, priority, handler, agent and bucket.

    Args:
        owners: ``bucket_id, bucket_epoch, agent``; small.

    Returns:
        ``day, hour, lane, priority, handler, agent, bucket_id``, the ``COUNTS``, ``ran_us``, ``waited_us`` (sums).
    """
    return (
        # Aggregate by hour before the join with owners: the join then has few rows.
        _counts(counted, (*GROUPS, "bucket_id", "bucket_epoch"))
        .join(F.broadcast(owners), ["bucket_id", "bucket_epoch"], "left")
        .select(_day(counted.grain), _time(counted.grain), *GROUPS, "agent", "bucket_id", *COUNTS, *_SUMS)
    )


def throughput_of_groups(counted: Tally) -> DataFrame:
    """The same without agent and bucket."""
    return _counts(counted, GROUPS).select(_day(counted.grain), _time(counted.grain), *GROUPS, *COUNTS, *_SUMS)


def costs(counted: Tally) -> DataFrame:
    """What jobs have used, by day of their end and of their attempts, tenant, lane, priority and handler.

    Returns:
        ``day, tenant, lane, priority, handler``, ``jobs`` (that ended), ``failed`` of them, ``retries`` (attempts that failed
        or were lost before their job was concluded), ``ran_us`` (time in handlers, of all attempts), ``retried_us`` (the part
        of it that concluded no job), ``waited_us``. ``tenant`` is an empty text for jobs without one.
    """
    ended, retries = (reduce(Column.__add__, map(F.col, names)) for names in (ENDED, ("retried", "lost")))
    day = F.expr(f"date_from_unix_date(CAST(at DIV {_DAY_US // counted.grain.microseconds} AS INT))")
    summed = (
        (ended, "jobs"), (F.col("failed"), "failed"), (retries, "retries"), (F.col("ran_us"), "ran_us"),
        (F.col("retried_us"), "retried_us"), (F.col("waited_us"), "waited_us"),
    )  # fmt: skip
    lines = [part.withColumn("retried_us", F.lit(0).cast("long")) for part in map(_moments, counted.jobs)]
    lines += [part.withColumn("retried_us", F.col("ran_us")) for part in counted.attempts]
    found = union_all(lines).groupBy(day.alias("day"), "tenant", *GROUPS)
    sums = found.agg(*(F.sum(value).alias(name) for value, name in summed))
    # The creation of a job uses nothing.
    return sums.where("jobs > 0 OR retries > 0 OR ran_us > 0")


def latencies(jobs: Sequence[DataFrame], grain: Grain = HOUR) -> DataFrame:
    """Histograms of jobs that ran, by hour (or minute) of the end, lane, priority and handler.

    Args:
        jobs: parts of the history without common jobs.

    Returns:
        ``day, hour, lane, priority, handler, metric`` (``waiting``, ``running``, ``total``), ``bin``, ``jobs``.
    """
    return (
        union_all([_bins(part, grain) for part in jobs])
        .groupBy("at", *GROUPS, "metric", "bin")
        .agg(F.sum("jobs").alias("jobs"))
        .select(_day(grain), _time(grain), *GROUPS, "metric", "bin", "jobs")
    )


def grown(old: DataFrame, new: DataFrame) -> DataFrame:
    """Aggregates of days whose history is incomplete: for each time and group the greater of two counts.

    Of equal counts the new one is used. A history only grows, so the smaller count misses discarded jobs.

    Args:
        old: the former counts, of any dataset of a roll-up.
        new: the counts of the remaining history.
    """
    what = [name for name in _KEYS if name in new.columns]
    counts = [name for name in (*COUNTS, "jobs", "retries", "attempts") if name in new.columns]
    total = reduce(Column.__add__, (F.coalesce(F.col(name), F.lit(0)) for name in counts))

    def keyed(frame: DataFrame) -> DataFrame:
        # A row without a bucket needs a key, too.
        return frame.withColumn("key", F.to_json(F.struct(*what), {"ignoreNullFields": "false"}))

    def totals(frame: DataFrame, name: str) -> DataFrame:
        return keyed(frame).groupBy("key").agg(F.sum(total).alias(name))

    kept = (
        totals(old, "before")
        .join(totals(new, "after"), "key", "left")
        .where(F.col("before") > F.coalesce("after", F.lit(0)))
        .select("key")
    )
    return union_all([keyed(old).join(kept, "key", "left_semi"), keyed(new).join(kept, "key", "left_anti")]).drop("key")


_KEYS = ("day", "hour", "minute", "tenant", *GROUPS, "bucket_id", "metric", "fingerprint")
"""Columns that make a group in some dataset. The agent of a bucket may be unknown by now, and bins belong together."""


def touched_days(jobs: Sequence[DataFrame], attempts: Sequence[DataFrame]) -> DataFrame:
    """The days to which jobs and attempts belong: column ``day``."""
    both = [part.select(_at("created_at", "created"), _at("ended_at", "ended")).distinct() for part in jobs]
    hours = [pairs.select(F.explode(F.array("created", "ended")).alias("at")) for pairs in both]
    found = union_all([*hours, *(part.select(_at("at", "at")) for part in attempts)])
    return found.where("at IS NOT NULL").select(_day(HOUR)).distinct()


def _at(column: str, name: str, grain: Grain = HOUR) -> Column:
    """Hours (or minutes) since 1970, UTC."""
    return F.expr(f"unix_micros({column}) DIV {grain.microseconds}").alias(name)


def _time(grain: Grain) -> Column:
    return F.timestamp_micros(F.col("at") * F.lit(grain.microseconds)).alias(grain.column)


def _day(grain: Grain) -> Column:
    return F.expr(f"date_from_unix_date(CAST(at DIV {_DAY_US // grain.microseconds} AS INT))").alias("day")


def _jobs(jobs: DataFrame, grain: Grain) -> DataFrame:
    """Group jobs by everything that is counted: one pass over the jobs, few rows out."""
    sums = (F.sum(F.coalesce(F.col(name), F.lit(0))).alias(name) for name in (*_SUMS, _RESCUES))
    times = (_at("created_at", "created", grain), _at("ended_at", "ended", grain))
    same = (*times, "state", *GROUPS, "tenant", "bucket_id", "bucket_epoch")
    return jobs.groupBy(*same).agg(F.count("*").alias("jobs"), *sums)


def _counts(counted: Tally, groups: Sequence[str]) -> DataFrame:
    events = [*map(_moments, counted.jobs), *counted.attempts]
    sums = (F.sum(name).alias(name) for name in (*COUNTS, *_SUMS))
    return union_all(events).groupBy("at", *groups).agg(*sums)


def _moments(jobs: DataFrame) -> DataFrame:
    """Rows of the throughput: a submission and, if there was one, an end for each group of jobs."""
    ends = F.col("ends")
    counts = [F.when(~ends, F.col("jobs")).otherwise(0).alias(SUBMITTED)]
    for name in COUNTS[1:]:
        ended = ends & (F.col("state") == _STATES[name]) if name in _STATES else ends & F.lit(name == "rescued")
        counts.append(F.when(ended, F.col("jobs" if name in _STATES else _RESCUES)).otherwise(0).alias(name))
    return (
        jobs.withColumn("ends", F.explode(F.array(F.lit(False), F.lit(True))))
        .where(~ends | F.col("ended").isNotNull())
        .select(
            F.when(ends, F.col("ended")).otherwise(F.col("created")).alias("at"),
            *GROUPS,
            "tenant",
            *(F.when(ends, F.col(name)).alias(name) for name in ("bucket_id", "bucket_epoch")),
            *counts,
            *(F.when(ends, F.col(name)).otherwise(0).alias(name) for name in _SUMS),
        )
    )


def _bins(jobs: DataFrame, grain: Grain) -> DataFrame:
    """``at, lane, priority, handler, metric, bin, jobs`` of one part."""
    # Start of the total time: the due time of a job that ran once, else its creation, for a retry and a rescue change it.
    once = (F.col("attempt") <= 1) & (F.col("rescues") == 0)
    since = F.when(once, F.coalesce("due_at", "created_at")).otherwise(F.col("created_at"))
    total = F.unix_micros("ended_at") - F.unix_micros(since)
    values = zip(_LATENCIES, (F.col("waited_us"), F.col("ran_us"), total), strict=True)
    ran = jobs.where(F.col("state").isin(JobState.SUCCEEDED.value, JobState.FAILED.value)).where("ran_us IS NOT NULL")
    return (
        ran.select(_at("ended_at", "at", grain), *GROUPS, *(bin_of(value).alias(name) for name, value in values))
        .unpivot(["at", *GROUPS], list(_LATENCIES), "metric", "bin")
        .where("bin IS NOT NULL")
        .groupBy("at", *GROUPS, "metric", "bin")
        .agg(F.count("*").alias("jobs"))
    )


def _message() -> Column:
    """As much of an error's message as tells its kind."""
    return F.substring(F.get_json_object("error", "$.message"), 1, LINE_CHARS_MAX)


def _attempts(attempts: DataFrame, grain: Grain) -> DataFrame:
    """Rows of the throughput, one for each attempt."""
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
    return attempts.select(
        _at("at", "at", grain), *GROUPS, "tenant", "bucket_id", "bucket_epoch", *counts, ran, nothing.alias("waited_us")
    )
