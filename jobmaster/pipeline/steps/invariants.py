"""Spark form of the history checks of ``jobmaster.audit.invariants``. Pure: frames in, frames out.

Archived and live jobs are checked together, in one shuffle by job id. The lines of a job (its rows and its attempts that did
not conclude it) meet in one partition; everything after that is aggregation in place. No line is sent twice, and only
violations leave the executors.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from jobmaster.audit.invariants import Subject, history_checks
from jobmaster.model.bucket import BucketState
from jobmaster.model.job import FINAL_STATES, AttemptOutcome, JobState

LAKE, MASTER = "lake", "master"
FINAL = tuple(sorted(state.value for state in FINAL_STATES))
IN_FLIGHT = (JobState.ASSIGNED.value, JobState.PROCESSING.value)
_SLEW_US = 10_000
"""The master's clock is adjusted while an agent measures a run with its own."""
_SKEW_US = 2 * 3_600_000_000
"""The clock of a producer (in the id) and the clock of the master may each be an hour off."""


JOB_CHECKS = history_checks(Subject.JOB)
"""In the order of the bits of column ``faults``."""
(CLEAN_EXIT,) = history_checks(Subject.BUCKET)
(FIRES,) = history_checks(Subject.FIRE)
(STEPS,) = history_checks(Subject.STEP)
(BATCHES,) = history_checks(Subject.BATCH)
RANGE_CHARS = 28
"""First characters that the ids of the jobs of one range of a batch have in common."""
(ORDER,) = history_checks(Subject.ORDER)
(FIGURES,) = history_checks(Subject.FIGURE)
_FIRE, _STEP, _BATCH, _ORDERED = '"nominal_us":', '"workflow":[', '"batch":true', '"ordering_key":'
"""Texts in the headers of jobs that checks look at."""
_HOUR_US = 3_600_000_000
_BIT = {check.name: 1 << at for at, check in enumerate(JOB_CHECKS)}


def lines_of(jobs: DataFrame, attempts: DataFrame, place: str) -> DataFrame:
    """Every line of the lake or of the master, with the faults that one line shows.

    Args:
        jobs, attempts: columns as in the data source.
        place: ``LAKE`` or ``MASTER``.

    Returns:
        One line for each row and attempt: ``job_id``, ``token``, ``assignment``, ``faults`` (bits) and columns for the sums.
    """
    return _jobs(jobs, place).unionByName(_attempts(attempts))


def violations_of(lines: DataFrame, partitions: int) -> DataFrame:
    """One line for each violated check of each job.

    Args:
        lines: ``lines_of`` the lake and of the master, together.
        partitions: of the shuffle; a partition of a million lines needs about 200 MB.

    Returns:
        ``check, job_id, detail``.
    """
    return _violations(_by_job(_by_assignment(lines.repartition(partitions, "job_id"))))


def unclean_exits(events: DataFrame) -> DataFrame:
    """One line for each bucket that an owner lost after its own clean exit.

    The maintenance task that finds jobs in the keys of a retired bucket is no owner and writes no actor.

    Args:
        events: ``bucket_id, from_state, to_state, actor, reason``.

    Returns:
        As ``violations_of``, with the bucket's id in the place of a job's.
    """
    retired, lost = BucketState.READY_TO_DELETE.value, BucketState.LOST.value
    unclean = (F.col("from_state") == retired) & (F.col("to_state") == lost) & F.col("actor").isNotNull()
    return events.where(unclean).select(
        F.lit(CLEAN_EXIT.name).alias("check"),
        F.col("bucket_id").alias("job_id"),
        F.format_string("LOST out of READY_TO_DELETE (%s) by its owner %s", "reason", "actor").alias("detail"),
    )


def shrunken_hours(jobs: DataFrame, throughput: DataFrame) -> DataFrame:
    """One line for each hour and final state with fewer jobs than a roll-up has counted: a history only grows.

    Args:
        jobs: ``state, changed_at`` of the lake and of the master, together.
        throughput: the figures of roll-ups, of the hours that are complete: ``hour`` and a column for each final state.

    Returns:
        As ``violations_of``, with the hour in the place of a job's id.
    """
    ended = jobs.where(F.col("state").isin(*FINAL)).groupBy(
        F.expr(f"unix_micros(changed_at) DIV {_HOUR_US}").alias("hour"), "state"
    )
    counted = throughput.groupBy(F.expr(f"unix_micros(hour) DIV {_HOUR_US}").alias("hour")).agg(
        *(F.sum(state.lower()).alias(state) for state in FINAL)
    )
    figures = counted.unpivot(["hour"], list(FINAL), "state", "counted").where("counted > 0")
    both = figures.join(ended.agg(F.count("*").alias("found")), ["hour", "state"], "left").fillna(0, ["found"])
    return both.where("found < counted").select(
        F.lit(FIGURES.name).alias("check"),
        F.date_format(F.timestamp_seconds(F.col("hour") * 3600), "yyyy-MM-dd'T'HH:mmXXX").alias("job_id"),
        F.format_string("%d jobs ended as %s, a roll-up has counted %d", "found", "state", "counted").alias("detail"),
    )


def named_jobs(jobs: DataFrame) -> DataFrame:
    """The jobs of schedules, workflows, batches and ordering keys: few as a rule, and all that the next four checks need.

    Args:
        jobs: with ``headers``.
    """
    headers = F.col("headers")
    return jobs.where(reduce(operator.or_, (headers.contains(mark) for mark in (_FIRE, _STEP, _BATCH, _ORDERED))))


def second_jobs_of_fires(jobs: DataFrame) -> DataFrame:
    """One line for each fire of a schedule with several jobs that were not cancelled.

    Few jobs are of schedules, and the others are left out before the shuffle.

    Args:
        jobs: ``id, state, headers`` of the lake and of the master, together.

    Returns:
        As ``violations_of``, with the id of the first of the jobs.
    """
    of_fires = jobs.where(F.col("headers").contains(_FIRE) & (F.col("state") != JobState.CANCELLED.value))
    named = of_fires.select(
        "id",
        F.get_json_object("headers", "$.schedule").alias("schedule"),
        F.get_json_object("headers", "$.nominal_us").cast("long").alias("nominal_us"),
    ).where("schedule IS NOT NULL AND nominal_us IS NOT NULL")  # else it was found in the metadata of a job
    fires = named.groupBy("schedule", "nominal_us").agg(
        F.count_distinct("id").alias("jobs"), F.min("id").alias("job_id")
    )
    return fires.where("jobs > 1").select(
        F.lit(FIRES.name).alias("check"),
        "job_id",
        F.format_string("%d jobs of schedule %s for %d us since 1970", "jobs", "schedule", "nominal_us").alias(
            "detail"
        ),
    )


def tries_of_steps(jobs: DataFrame) -> DataFrame:
    """One line for each step of a workflow with two jobs of one try, or with a job that has not ended before a later try.

    The try stands in the id of the job: four hexadecimal digits before those of the step. Few jobs are of workflows, and the
    others are left out before the shuffle.

    Args:
        jobs: ``id, state, headers`` of the lake and of the master, together.

    Returns:
        As ``violations_of``, with the id of the first of the jobs.
    """
    of_steps = jobs.where(F.col("headers").contains(_STEP))
    named = of_steps.select(
        "id",
        F.get_json_object("headers", "$.workflow[0]").alias("workflow"),
        F.get_json_object("headers", "$.workflow[1]").cast("int").alias("step"),
        F.substring("id", -8, 4).alias("try"),
        (~F.col("state").isin(*FINAL)).alias("open"),
    ).where("workflow IS NOT NULL AND step IS NOT NULL")
    steps = named.groupBy("workflow", "step").agg(
        F.min("id").alias("job_id"),
        F.count_distinct("id").alias("jobs"),
        F.count_distinct("try").alias("tries"),
        F.max("try").alias("last"),
        F.min(F.when(F.col("open"), F.col("try"))).alias("first_open"),
    )
    return steps.where("jobs > tries OR first_open < last").select(
        F.lit(STEPS.name).alias("check"),
        "job_id",
        F.format_string(
            "step %d of workflow %s: %d jobs of %d tries, unfinished from try %s on",
            "step", "workflow", "jobs", "tries", F.coalesce("first_open", F.lit("-")),
        ).alias("detail"),
    )  # fmt: skip


def miscounted_batches(jobs: DataFrame, batches: DataFrame) -> DataFrame:
    """One line for each batch whose counters differ from a recount of its jobs.

    Jobs of no batch are left out before the shuffle. A job in quarantine has no row and counts as failed, so there may be
    fewer failed rows than counted ones.

    Args:
        jobs: ``id, state, headers`` of the lake and of the master, together.
        batches: ``id, ranges, complete, succeeded, failed, cancelled, expired`` of batches that have ended with their last
            job. ``ranges``: the first characters of the ids of their jobs. ``complete``: no job of theirs was discarded.

    Returns:
        As ``violations_of``, with the id of the batch in the place of a job's.
    """
    ranges = batches.select(F.col("id").alias("batch"), F.explode("ranges").alias("range"))
    of_batches = jobs.where(F.col("headers").contains(_BATCH)).select(
        F.substring("id", 1, RANGE_CHARS).alias("range"), "state"
    )
    recount = (
        of_batches.join(F.broadcast(ranges), "range")
        .groupBy(F.col("batch").alias("id"))
        .agg(
            *(F.count(F.when(F.col("state") == state, True)).alias(f"found_{state.lower()}") for state in FINAL),
            F.count(F.when(~F.col("state").isin(*FINAL), True)).alias("found_unfinished"),
        )
    )
    names = [state.lower() for state in FINAL]
    both = batches.join(recount, "id", "left").fillna(0)
    too_many = [F.col(f"found_{name}") > F.col(name) for name in names]
    too_few = [F.col("complete") & (F.col(f"found_{name}") < F.col(name)) for name in names if name != "failed"]
    wrong = reduce(operator.or_, [F.col("found_unfinished") > 0, *too_many, *too_few])
    counters = ", ".join(f"{name} %d" for name in names)
    return both.where(wrong).select(
        F.lit(BATCHES.name).alias("check"),
        F.col("id").alias("job_id"),
        F.format_string(
            f"counted: {counters}; found: {counters}, unfinished %d",
            *names,
            *(f"found_{name}" for name in names),
            "found_unfinished",
        ).alias("detail"),
    )


def overlapping_runs(jobs: DataFrame) -> DataFrame:
    """One line for each job of an ordering key whose last run began before that of another job of the key had ended.

    The outcome of a run is written after its end, so its begin is not earlier than that time less its duration; and the
    next job of the key starts when that outcome is committed. Few jobs have an ordering key, and the others are left out
    before the shuffle. (The permits of other limits leave no trace in the history.)

    Args:
        jobs: ``id, headers, changed_at, ran_us`` of the lake and of the master, together.

    Returns:
        As ``violations_of``, with the id of the job that began too early.
    """
    keyed = (
        jobs.where(F.col("headers").contains(_ORDERED) & (F.col("ran_us") > 0))
        .select(
            F.col("id").alias("job_id"),
            F.get_json_object("headers", "$.ordering_key").alias("key"),
            F.unix_micros("changed_at").alias("ended_us"),
            (F.unix_micros("changed_at") - F.col("ran_us")).alias("began_us"),
        )
        .where("key IS NOT NULL")
    )  # else it was found in the metadata of a job
    before = (
        Window.partitionBy("key").orderBy("began_us", "ended_us", "job_id").rowsBetween(Window.unboundedPreceding, -1)
    )
    with_former = keyed.withColumn("former_us", F.max("ended_us").over(before))
    return with_former.where(F.col("began_us") < F.col("former_us") - _SLEW_US).select(
        F.lit(ORDER.name).alias("check"),
        "job_id",
        F.format_string(
            "began %d us before the end of another job of key %s", F.col("former_us") - F.col("began_us"), "key"
        ).alias("detail"),
    )


def _jobs(jobs: DataFrame, place: str) -> DataFrame:
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


def _attempts(attempts: DataFrame) -> DataFrame:
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
    """One line for each assignment of a job: concluded, tried, refused."""
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
            F.when(F.col(column).isNotNull(), F.format_string(f"{label} %d", column))
            for column, label in (
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
    """Bits of the checks that fail; a comparison with NULL is no fault."""
    bits = F.lit(0)
    for name, condition in broken.items():
        bits = bits.bitwiseOR(F.when(condition, F.lit(_BIT[name])).otherwise(F.lit(0)))
    return bits
