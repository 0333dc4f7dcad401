"""The table of invariants: the sentence, the SQL file that counts violations, and the checks of the whole history.

``jobmaster doctor`` runs the SQL on a live cluster (``auditor``). ``jobmaster pipeline audit`` runs the history checks over
archived and live jobs together; their Spark form is ``jobmaster.pipeline.steps.invariants``.
"""

from __future__ import annotations

from enum import StrEnum
from functools import cache
from importlib import resources
from typing import NamedTuple


class Parameter(StrEnum):
    """A parameter of a statement, in the order of its ``$`` numbers."""

    LIMIT = "limit"
    """Rows of evidence."""
    FLOOR = "floor"
    """Lowest job id that is checked."""
    QUIET = "quiet"
    """Seconds without change after which a row is checked."""


class Subject(StrEnum):
    """What a history check is about."""

    JOB = "job"
    BUCKET = "bucket"
    FIRE = "fire"
    STEP = "step"
    BATCH = "batch"
    ORDER = "order"
    FILE = "file"
    DOCUMENT = "document"
    FIGURE = "figure"


class HistoryCheck(NamedTuple):
    """A check of the whole history, archived and live."""

    name: str
    """In the reports; it begins with the number of the invariant."""
    rule: str
    subject: Subject = Subject.JOB


class Invariant(NamedTuple):
    """One invariant."""

    number: str
    sentence: str
    statement: str | None
    """Name of its SQL file. ``None``: the auditor checks it in code."""
    parameters: tuple[Parameter, ...] = ()
    history: tuple[HistoryCheck, ...] = ()
    """Its checks of the whole history."""


_ROWS = (Parameter.LIMIT, Parameter.FLOOR)
_FEW = (Parameter.LIMIT,)

INVARIANTS: tuple[Invariant, ...] = (
    Invariant(
        "I1",
        "a job has at most one concluding ledger line, ever",
        "i1_one_conclusion",
        _ROWS,
        (
            HistoryCheck("i1_rows", "a job has one row, in the master or in the lake"),
            HistoryCheck("i1_attempts", "the assignment that concluded a job is not among its attempts"),
        ),
    ),
    Invariant(
        "I2",
        "a row is final exactly when it has a concluding line",
        "i2_final_is_concluded",
        _ROWS,
        (HistoryCheck("i2_outcome", "a row has the columns of its outcome, and no others"),),
    ),
    Invariant(
        "I3",
        "tokens and epochs only grow",
        "i3_numbers_grow",
        _ROWS,
        (HistoryCheck("i3_token", "the token of an unfinished job is not below that of an earlier attempt"),),
    ),
    Invariant(
        "I4",
        "no accepted write carries an old token",
        "i4_no_stale_write",
        _ROWS,
        (
            HistoryCheck("i4_stale", "the token of an outcome is not below that of an attempt"),
            HistoryCheck("i4_refused", "no assignment whose writes were refused has a success"),
        ),
    ),
    Invariant(
        "I5",
        "every acknowledged job is final or found alive",
        None,
        history=(HistoryCheck("i5_lost", "a job with attempts has a row"),),
    ),
    Invariant("I6", "a bucket has one owner per epoch", "i6_one_owner", _FEW),
    Invariant(
        "I7",
        "no job names two buckets",
        "i7_one_bucket",
        _ROWS,
        (HistoryCheck("i7_bucket", "a held job names no bucket, a job in flight names one"),),
    ),
    Invariant(
        "I8",
        "when it is quiet, nothing is in flight without a live agent",
        "i8_nothing_orphaned",
        (Parameter.LIMIT, Parameter.QUIET),
        (HistoryCheck("i8_archived", "only finished jobs are in the lake"),),
    ),
    Invariant("I9", "one job per idempotency key, one at a time per unique key", "i9_one_job_per_key", _ROWS),
    Invariant(
        "I10",
        "one job per nominal time of a schedule, and no fire without a line",
        "i10_one_job_per_fire",
        _ROWS,
        (HistoryCheck("i10_fires", "a fire of a schedule has one job that was not cancelled", Subject.FIRE),),
    ),
    Invariant(
        "I11",
        "limits are never exceeded",
        "i11_limits_kept",
        _FEW,
        (HistoryCheck("i11_order", "runs of jobs of one ordering key do not overlap", Subject.ORDER),),
    ),
    Invariant(
        "I12",
        "counters of batches equal a recount",
        "i12_batches_counted",
        _ROWS,
        (
            HistoryCheck(
                "i12_counters", "the counters of a batch that has ended equal a recount of its jobs", Subject.BATCH
            ),
        ),
    ),
    Invariant("I13", "one leader per epoch", "i13_one_leader", _FEW),
    Invariant(
        "I14",
        "a clean exit causes no rescue",
        "i14_clean_exit",
        _FEW,
        (HistoryCheck("i14_clean_exit", "no bucket is lost that its owner had emptied and closed", Subject.BUCKET),),
    ),
    Invariant(
        "I15",
        "a workflow continues exactly when a job of it has ended",
        "i15_workflow_continues",
        _ROWS,
        (
            HistoryCheck(
                "i15_steps",
                "each try of a step of a workflow is one job, and the tries before it have ended",
                Subject.STEP,
            ),
        ),
    ),
)

HISTORY_CHECKS: tuple[HistoryCheck, ...] = (
    *(check for invariant in INVARIANTS for check in invariant.history),
    HistoryCheck("t1_times", "no job ended before it was created, and no duration is below zero"),
    HistoryCheck("t2_after", "no attempt is recorded after its job had ended"),
    HistoryCheck("a1_files", "every file of the lake is present and as it was verified", Subject.FILE),
    HistoryCheck("a2_documents", "the master and the documents of the lake name the same files", Subject.DOCUMENT),
    HistoryCheck("a3_figures", "no hour has fewer ended jobs than a roll-up has counted in it", Subject.FIGURE),
)
"""Every check of the whole history: those of the invariants, of times (T) and of the archive's files (A)."""


def history_checks(subject: Subject) -> tuple[HistoryCheck, ...]:
    """The checks about one kind of subject, in the order of the table."""
    return tuple(check for check in HISTORY_CHECKS if check.subject is subject)


@cache
def statement(name: str) -> str:
    """Text of one SQL file of this package."""
    return resources.files("jobmaster.audit").joinpath("sql", f"{name}.sql").read_text(encoding="utf-8")
