"""Which way a new job goes, and which bucket it gets.

Buckets are chosen by power-of-two-choices (Mitzenmacher 1996): look at two random ones, take the emptier. Against one
stale picture of the depths that many producers share, "always the emptiest" sends everybody to the same bucket; two random
choices do not, and come within a constant of the best.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from jobmaster.model.job import Durability


class Way(StrEnum):
    """How a new job enters the cluster."""

    BUCKET = "bucket"
    """SavePending: straight into a bucket, acknowledged by its store."""
    MASTER_THEN_BUCKET = "master_then_bucket"
    """A row that is ASSIGNED from the start, then the copy into that bucket."""
    HELD = "held"
    """A row that waits in the master until it is nearly due."""


def way(due_us: int, now_us: int, transient_threshold_seconds: float, durability: Durability) -> Way:
    """The way of a job that is due at ``due_us`` (0 = at once; a past time counts as now).

    A job due later than the transient threshold waits in the master, whatever its durability. One that must be a committed
    row goes on into a bucket in the same breath only when it is due now; else onboarding brings it there in time.
    """
    wait_us = due_us - now_us if due_us else 0
    if wait_us > transient_threshold_seconds * 1_000_000:
        return Way.HELD
    if durability is Durability.MASTER:
        return Way.MASTER_THEN_BUCKET if wait_us <= 0 else Way.HELD
    return Way.BUCKET


def choose(loads: Sequence[int], first: float, second: float) -> int:
    """Index of the bucket to take.

    Args:
        loads: jobs known to wait in each candidate; at least one.
        first: a number in [0, 1) from the caller's source of randomness.
        second: another one.
    """
    count = len(loads)
    if count == 1:
        return 0
    one = int(first * count)
    # The second choice is another one, so that two buckets are always compared.
    other = (one + 1 + int(second * (count - 1))) % count
    return one if loads[one] <= loads[other] else other
