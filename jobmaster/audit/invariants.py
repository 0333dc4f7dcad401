"""The invariants by number: what each says, and which statements look for violations of it."""

from __future__ import annotations

from enum import StrEnum
from functools import cache
from importlib import resources
from typing import NamedTuple


class Parameter(StrEnum):
    """What a statement wants to be told, in the order of its ``$`` numbers."""

    LIMIT = "limit"
    """Rows of evidence."""
    FLOOR = "floor"
    """Lowest job id looked at."""
    QUIET = "quiet"
    """Seconds without change after which a row is judged."""


class Invariant(NamedTuple):
    """One promise."""

    number: str
    sentence: str
    statement: str | None
    """Name of its SQL file; ``None``: it is checked otherwise, or there is nothing to check yet."""
    parameters: tuple[Parameter, ...] = ()
    not_applicable: str | None = None
    """Why there is nothing to check."""


_ROWS = (Parameter.LIMIT, Parameter.FLOOR)
_FEW = (Parameter.LIMIT,)

INVARIANTS: tuple[Invariant, ...] = (
    Invariant("I1", "a job has at most one concluding ledger line, ever", "i1_one_conclusion", _ROWS),
    Invariant("I2", "a row is final exactly when it has a concluding line", "i2_final_is_concluded", _ROWS),
    Invariant("I3", "tokens and epochs only grow", "i3_numbers_grow", _ROWS),
    Invariant("I4", "no accepted write carries an old token", "i4_no_stale_write", _ROWS),
    Invariant("I5", "every acknowledged job is final or found alive", None),
    Invariant("I6", "a bucket has one owner per epoch", "i6_one_owner", _FEW),
    Invariant("I7", "no job names two buckets", "i7_one_bucket", _ROWS),
    Invariant(
        "I8",
        "when it is quiet, nothing is in flight without a live agent",
        "i8_nothing_orphaned",
        (Parameter.LIMIT, Parameter.QUIET),
    ),
    Invariant("I9", "one job per idempotency key", "i9_one_job_per_key", _ROWS),
    Invariant("I10", "one job per tick of a schedule", None, not_applicable="there are no recurring schedules"),
    Invariant("I11", "limits are never exceeded", None, not_applicable="there are no limits on concurrency or rate"),
    Invariant("I12", "counters of batches equal a recount", None, not_applicable="there are no batches"),
    Invariant("I13", "one coordinator per epoch", "i13_one_coordinator", _FEW),
    Invariant("I14", "a clean exit causes no rescue", "i14_clean_exit", _FEW),
)


@cache
def statement(name: str) -> str:
    """Text of one SQL file of this package."""
    return resources.files("jobmaster.audit").joinpath("sql", f"{name}.sql").read_text(encoding="utf-8")
