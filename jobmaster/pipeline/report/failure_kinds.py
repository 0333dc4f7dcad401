"""Failures of a history by kind: how many of each, and when the first and the last was seen. Pure: frames in, a frame out.

The kind is that of ``jobmaster.rules.failure_group``, computed by its functions, so a fingerprint here is that of the pages
and of the filter ``error=``.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from jobmaster.pipeline.lake.full_history import union_all
from jobmaster.rules.failure_group import error_fingerprint, error_line


def failures(jobs: Sequence[DataFrame], attempts: Sequence[DataFrame]) -> DataFrame:
    """Kinds of failures by the day (UTC) on which jobs ended and attempts were recorded.

    Args:
        jobs: parts of the history, as of ``aggregates.with_facts``.
        attempts: as of ``aggregates.attempts_of``.

    Returns:
        ``day, fingerprint, handler, error_type, line``, ``jobs`` (that failed for good), ``attempts`` (that failed before
        their job was concluded), ``first_at``, ``last_at``.
    """
    one, none = F.lit(1).cast("long"), F.lit(0).cast("long")
    lines = [_lines(part.where("message IS NOT NULL"), "ended_at", one, none) for part in jobs]
    lines += [_lines(part.where("message IS NOT NULL"), "at", none, one) for part in attempts]
    line = F.udf(error_line, "string", useArrow=True)
    fingerprint = F.udf(error_fingerprint, "string", useArrow=True)
    return (
        union_all(lines)
        .withColumn("line", line("message"))
        .groupBy("day", "handler", "error_type", "line")
        .agg(
            F.sum("jobs").alias("jobs"),
            F.sum("attempts").alias("attempts"),
            F.min("at").alias("first_at"),
            F.max("at").alias("last_at"),
        )
        # The line of a line is the line itself.
        .withColumn("fingerprint", fingerprint("handler", "error_type", "line"))
        .select("day", "fingerprint", "handler", "error_type", "line", "jobs", "attempts", "first_at", "last_at")
    )


def _lines(frame: DataFrame, at: str, jobs: Column, attempts: Column) -> DataFrame:
    day = F.expr(f"date_from_unix_date(CAST(unix_seconds({at}) DIV 86400 AS INT))")
    return frame.select(
        day.alias("day"), "handler", F.coalesce("error_type", F.lit("")).alias("error_type"), "message",
        F.col(at).alias("at"), jobs.alias("jobs"), attempts.alias("attempts"),
    )  # fmt: skip
