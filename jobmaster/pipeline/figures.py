"""What a history comes down to, by the hour. Pure: frames in, frames out; columns of ``jobs`` and ``attempts`` of the source.

Jobs are counted when they were created (``submitted``) and when they ended, attempts when they were recorded, so a job may
touch several days; a day is right only when every job and attempt that touches it is in the frames.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from jobmaster.model.job import AttemptOutcome, JobState
from jobmaster.pipeline.histograms import bin_of

SUBMITTED = "submitted"
COUNTS = (
    SUBMITTED, "succeeded", "failed", "cancelled", "expired", "retried", "timed_out", "lost", "refused",
)  # fmt: skip
"""Columns of the throughput. The last four count attempts: failed ones that were tried again, those of them that ran out of
time, those that a dead agent left behind, and late writes that were refused."""
GROUPS = ("lane", "priority", "handler")
_ENDED = {state.value: state.value.lower() for state in (
    JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED, JobState.EXPIRED,
)}  # fmt: skip
_LATENCIES = ("waiting", "running", "total")


def throughput(jobs: DataFrame, attempts: DataFrame, owners: DataFrame) -> DataFrame:
    """Counts by hour, lane, priority, handler, agent and bucket.

    Args:
        owners: ``bucket_id, bucket_epoch, agent``; small.

    Returns:
        ``day, hour, lane, priority, handler, agent, bucket_id``, the ``COUNTS``, ``ran_us``, ``waited_us`` (sums).
    """
    events = _submissions(jobs).unionByName(_endings(jobs)).unionByName(_attempts(jobs, attempts))
    return (
        # Hours first and agents after: what is joined is what is left of the history, not the history.
        events.groupBy("hour", *GROUPS, "bucket_id", "bucket_epoch")
        .agg(*(F.sum(name).alias(name) for name in (*COUNTS, "ran_us", "waited_us")))
        .join(F.broadcast(owners), ["bucket_id", "bucket_epoch"], "left")
        .select(F.to_date("hour").alias("day"), "hour", *GROUPS, "agent", "bucket_id", *COUNTS, "ran_us", "waited_us")
    )


def latencies(jobs: DataFrame) -> DataFrame:
    """Histograms by hour of the end, lane, priority and handler: of jobs that ran.

    Returns:
        ``day, hour, lane, priority, handler, metric`` (``waiting``, ``running``, ``total``), ``bin``, ``jobs``.
    """
    # From when it could have run: the due time of a job that was never tried again, else its creation.
    since = F.when(F.col("attempt") == 0, F.coalesce("due_at", "created_at")).otherwise(F.col("created_at"))
    total = F.unix_micros("ended_at") - F.unix_micros(since)
    ran = jobs.where(F.col("state").isin(JobState.SUCCEEDED.value, JobState.FAILED.value)).where("ran_us IS NOT NULL")
    bins = F.array(
        *(
            F.struct(F.lit(name).alias("metric"), bin_of(value).alias("bin"))
            for name, value in zip(_LATENCIES, (F.col("waited_us"), F.col("ran_us"), total), strict=True)
        )
    )
    return (
        ran.select(_hour("ended_at"), *GROUPS, F.explode(bins).alias("at"))
        .groupBy("hour", *GROUPS, "at.metric", "at.bin")
        .agg(F.count("*").alias("jobs"))
        .where("bin IS NOT NULL")
        .select(F.to_date("hour").alias("day"), "hour", *GROUPS, "metric", "bin", "jobs")
    )


def touched_days(jobs: DataFrame, attempts: DataFrame) -> DataFrame:
    """The days that some jobs and attempts touch: column ``day``."""
    moments = jobs.select(F.explode(F.array("created_at", "ended_at")).alias("at")).unionByName(attempts.select("at"))
    return moments.where("at IS NOT NULL").select(F.to_date("at").alias("day")).distinct()


def _hour(column: str) -> Column:
    return F.date_trunc("hour", column).alias("hour")


def _counted(frame: DataFrame, hour: Column, flags: dict[str, Column], *others: Column) -> DataFrame:
    """Rows of the throughput: 1 where a flag holds, 0 elsewhere."""
    counts = (flags[name].cast("long") if name in flags else F.lit(0).cast("long") for name in COUNTS)
    return frame.select(
        hour, *GROUPS, *others, *(count.alias(name) for name, count in zip(COUNTS, counts, strict=True))
    )


def _nowhere() -> tuple[Column, ...]:
    return (
        F.lit(None).cast("string").alias("bucket_id"),
        F.lit(None).cast("long").alias("bucket_epoch"),
        F.lit(0).cast("long").alias("ran_us"),
        F.lit(0).cast("long").alias("waited_us"),
    )


def _submissions(jobs: DataFrame) -> DataFrame:
    return _counted(jobs, _hour("created_at"), {SUBMITTED: F.lit(True)}, *_nowhere())


def _endings(jobs: DataFrame) -> DataFrame:
    flags = {name: F.col("state") == state for state, name in _ENDED.items()}
    sums = (F.coalesce(F.col(name), F.lit(0)).alias(name) for name in ("ran_us", "waited_us"))
    ended = jobs.where("ended_at IS NOT NULL")
    return _counted(ended, _hour("ended_at"), flags, F.col("bucket_id"), F.col("bucket_epoch"), *sums)


def _attempts(jobs: DataFrame, attempts: DataFrame) -> DataFrame:
    outcome = F.col("outcome")
    tried = (AttemptOutcome.FAILED.value, AttemptOutcome.TIMED_OUT.value)
    flags = {
        "retried": outcome.isin(*tried),
        "timed_out": outcome == AttemptOutcome.TIMED_OUT.value,
        "lost": outcome == AttemptOutcome.LOST.value,
        "refused": F.col("refused_at").isNotNull(),
    }
    lines = attempts.select(
        F.col("job_id").alias("id"), "at", "outcome", "refused_at", "bucket_id", "bucket_epoch",
        F.coalesce("ran_us", F.lit(0)).alias("ran_us"), F.lit(0).cast("long").alias("waited_us"),
    )  # fmt: skip
    others = (F.col("bucket_id"), F.col("bucket_epoch"), F.col("ran_us"), F.col("waited_us"))
    return _counted(lines.join(jobs.select("id", *GROUPS), "id"), _hour("at"), flags, *others)
