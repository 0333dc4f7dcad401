"""The invariants over a whole history, archived and live together, in one shuffle by job id. Pure: frames in, frames out.

The lines of a job (its rows and its attempts that did not conclude it) meet in one partition; everything after that is
aggregation in place. No line is sent twice, and nothing but violations leaves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from jobmaster.model.bucket import BucketState
from jobmaster.model.job import FINAL_STATES, AttemptOutcome, JobState

LAKE, MASTER = "lake", "master"
FINAL = tuple(sorted(state.value for state in FINAL_STATES))
IN_FLIGHT = (JobState.ASSIGNED.value, JobState.PROCESSING.value)
_SKEW_US = 2 * 3_600_000_000
"""A producer's clock, in the id, and the master's may be an hour off each."""


class Check(NamedTuple):
    """One rule."""

    name: str
    """With the number of the invariant it belongs to."""
    rule: str


CHECKS = (
    Check("i1_rows", "a job has one row, in the master or in the lake"),
    Check("i1_attempts", "the assignment that concluded a job does not stand among its attempts"),
    Check("i2_outcome", "what an outcome consists of is on the row, and nothing else"),
    Check("i3_token", "a job that waits or runs is not behind an attempt it made before"),
    Check("i4_stale", "no outcome bears a token below that of an attempt"),
    Check("i4_refused", "no success was made by an assignment whose writes were refused"),
    Check("i5_lost", "a job with attempts has a row"),
    Check("i7_bucket", "a job that is held names no bucket, one in flight names one"),
    Check("i8_archived", "only finished jobs are in the lake"),
    Check("t1_times", "nothing ended before it was created, and no duration is below zero"),
    Check("t2_after", "no attempt is recorded after its job had ended"),
)
"""What is checked, in the order of the bits."""
CLEAN_EXIT = Check("i14_clean_exit", "no bucket is lost that its owner had emptied and closed")
"""The one rule about buckets: ``unclean_exits``."""
_BIT = {check.name: 1 << at for at, check in enumerate(CHECKS)}


def lines_of(jobs: DataFrame, attempts: DataFrame, place: str) -> DataFrame:
    """Every line of one place, judged as far as it can be alone.

    Args:
        jobs, attempts: columns as the source has them.
        place: ``LAKE`` or ``MASTER``.
    """
    return _rows(jobs, place).unionByName(_tries(attempts))


def judged(lines: DataFrame, partitions: int) -> DataFrame:
    """One line for each violated rule of each job.

    Args:
        lines: ``lines_of`` the lake and of the master, together.
        partitions: of the shuffle; a partition of a million lines needs about 200 MB.

    Returns:
        ``check, job_id, detail``.
    """
    return _violations(_by_job(_by_assignment(lines.repartition(partitions, "job_id"))))


def unclean_exits(events: DataFrame) -> DataFrame:
    """One line for each bucket that an owner lost after its own clean end; the housekeeper, who finds jobs in the keys of a
    retired bucket, is no owner and writes no actor.

    Args:
        events: ``bucket_id, from_state, to_state, actor, reason``.

    Returns:
        As ``judged``, with the bucket's id in the place of a job's.
    """
    retired, lost = BucketState.READY_TO_DELETE.value, BucketState.LOST.value
    unclean = (F.col("from_state") == retired) & (F.col("to_state") == lost) & F.col("actor").isNotNull()
    return events.where(unclean).select(
        F.lit(CLEAN_EXIT.name).alias("check"),
        F.col("bucket_id").alias("job_id"),
        F.format_string("LOST out of READY_TO_DELETE (%s) by its owner %s", "reason", "actor").alias("detail"),
    )


def _rows(jobs: DataFrame, place: str) -> DataFrame:
    state = F.col("state")
    final = state.isin(*FINAL)
    held, flying, succeeded = state == JobState.HELD.value, state.isin(*IN_FLIGHT), state == JobState.SUCCEEDED.value
    nowhere = F.col("bucket_id").isNull() | F.col("bucket_epoch").isNull()
    somewhere = F.col("bucket_id").isNotNull() | F.col("bucket_epoch").isNotNull()
    faults = _faults(
        {
            "i2_outcome": (succeeded & (F.col("error").isNotNull() | F.col("bucket_id").isNull()))
            | ((state == JobState.FAILED.value) & F.col("error").isNull())
            | (~succeeded & F.col("result").isNotNull()),
            "i7_bucket": (held & somewhere) | (flying & nowhere),
            "i8_archived": F.lit(place == LAKE) & ~final,
            "t1_times": (F.unix_micros("changed_at") < F.unix_micros("created_at") - _SKEW_US)
            | (F.col("ran_us") < 0)
            | (F.col("waited_us") < -_SKEW_US),
        }
    )
    return jobs.select(
        F.col("id").alias("job_id"),
        "token",
        _assignment().alias("assignment"),
        faults.alias("faults"),
        F.lit(1).alias("in_lake" if place == LAKE else "in_master"),
        F.lit(0).alias("in_master" if place == LAKE else "in_lake"),
        F.when(final, F.col("token")).alias("final_token"),
        F.when(~final, F.col("token")).alias("open_token"),
        F.when(final, F.unix_micros("changed_at")).alias("ended_us"),
        (state == JobState.SUCCEEDED.value).alias("succeeded"),
        final.alias("concludes"),
        F.lit(False).alias("tried"),
        F.lit(False).alias("refused"),
        F.lit(None).cast("int").alias("try_token"),
        F.lit(None).cast("long").alias("tried_us"),
    )


def _tries(attempts: DataFrame) -> DataFrame:
    only_refused = F.col("outcome") == AttemptOutcome.REFUSED.value
    none = F.lit(None)
    return attempts.select(
        "job_id",
        "token",
        _assignment().alias("assignment"),
        F.lit(0).alias("faults"),
        F.lit(0).alias("in_lake"),
        F.lit(0).alias("in_master"),
        none.cast("int").alias("final_token"),
        none.cast("int").alias("open_token"),
        none.cast("long").alias("ended_us"),
        F.lit(False).alias("succeeded"),
        F.lit(False).alias("concludes"),
        (~only_refused).alias("tried"),
        F.col("refused_at").isNotNull().alias("refused"),
        F.when(~only_refused, F.col("token")).alias("try_token"),
        F.when(~only_refused, F.unix_micros("at")).alias("tried_us"),
    )


def _by_assignment(lines: DataFrame) -> DataFrame:
    """One line for each identity of a job: what was concluded, tried and refused under it."""
    concluded, tried, refused = F.max("concludes"), F.max("tried"), F.max("refused")
    clash = F.when(concluded & tried, _BIT["i1_attempts"]).otherwise(0)
    stale = F.when(F.max("succeeded") & refused, _BIT["i4_refused"]).otherwise(0)
    return lines.groupBy("job_id", "token", "assignment").agg(
        F.bit_or("faults").bitwiseOR(clash).bitwiseOR(stale).alias("faults"),
        *(F.sum(name).alias(name) for name in ("in_lake", "in_master")),
        *(F.max(name).alias(name) for name in ("final_token", "open_token", "try_token", "tried_us")),
        F.min("ended_us").alias("ended_us"),
    )


def _by_job(assignments: DataFrame) -> DataFrame:
    rows = F.sum("in_lake") + F.sum("in_master")
    try_token, final_token, open_token = F.max("try_token"), F.min("final_token"), F.min("open_token")
    faults = _faults(
        {
            "i1_rows": rows > 1,
            "i3_token": open_token < try_token,
            "i4_stale": final_token < try_token,
            "i5_lost": rows == 0,
            "t2_after": F.min("ended_us") < F.max("tried_us"),
        }
    )
    return assignments.groupBy("job_id").agg(
        F.bit_or("faults").bitwiseOR(faults).alias("faults"),
        F.sum("in_lake").alias("in_lake"),
        F.sum("in_master").alias("in_master"),
        F.min("final_token").alias("final_token"),
        F.min("open_token").alias("open_token"),
        F.max("try_token").alias("try_token"),
    )


def _violations(jobs: DataFrame) -> DataFrame:
    names = F.filter(
        F.array(*(F.when(F.col("faults").bitwiseAND(F.lit(bit)) != 0, F.lit(name)) for name, bit in _BIT.items())),
        lambda name: name.isNotNull(),
    )
    detail = F.concat_ws(
        ", ",
        F.format_string("rows in the lake %d", "in_lake"),
        F.format_string("in the master %d", "in_master"),
        *(
            F.when(F.col(column).isNotNull(), F.format_string(f"{said} %d", column))
            for column, said in (
                ("final_token", "outcome with token"),
                ("open_token", "unfinished with token"),
                ("try_token", "last attempt with token"),
            )
        ),
    )
    return jobs.where("faults <> 0").select(F.explode(names).alias("check"), "job_id", detail.alias("detail"))


def _assignment() -> Column:
    """Bucket and epoch as one number."""
    return F.xxhash64("bucket_id", "bucket_epoch")


def _faults(broken: Mapping[str, Column]) -> Column:
    """Bits of the rules that do not hold; a comparison with something that is not there breaks nothing."""
    bits = F.lit(0)
    for name, condition in broken.items():
        bits = bits.bitwiseOR(F.when(condition, F.lit(_BIT[name])).otherwise(F.lit(0)))
    return bits
