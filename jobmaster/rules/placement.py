"""Which way a new job goes, and which bucket it gets.

Buckets are chosen by power-of-two-choices (Mitzenmacher 1996): look at two random ones, take the emptier. Against one
stale picture of the depths that many producers share, "always the emptiest" sends everybody to the same bucket; two random
choices do not, and come within a constant of the best. Where owners take different shares of the jobs, the two are drawn
and compared by them.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from jobmaster.model.job import Durability

FEW_JOBS = 16
"""So many jobs may wait in a bucket whose owner has nothing to do."""


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


def pair(count: int, first: float, second: float, shares: Sequence[float] | None = None) -> tuple[int, int]:
    """Two different places among ``count`` (at least two), the first one with a chance that grows with its share.

    Args:
        first: a number in [0, 1) from the caller's source of randomness.
        second: another one.
        shares: of each place; ``None``: they are alike.
    """
    if shares is None:
        one = int(first * count)
        # The second choice is another one, so that two buckets are always compared.
        return one, (one + 1 + int(second * (count - 1))) % count
    total = sum(shares)
    one = _at(shares, first * total, -1)
    return one, _at(shares, second * (total - shares[one]), one)


def _at(shares: Sequence[float], point: float, without: int) -> int:
    """The place that covers a point when all but one of them lie end to end, as long as their shares."""
    last = 0
    for place, share in enumerate(shares):
        if place == without:
            continue
        last = place
        point -= share
        if point < 0.0:
            break
    return last


def goes_first(load: int, share: float, other_load: int, other_share: float) -> bool:
    """Whether the first of two buckets gets the job: the one that has less to do for its share. Where both have equally
    much, the first: it was drawn by share, so that idle buckets get jobs by their shares, too.

    Between different shares a few jobs do not count: an idle owner has taken them before the next one comes, and were they
    compared, a bucket of small share would be left alone for as long as its last answer, which nobody renews then, names one.
    """
    if share == other_share:
        return load <= other_load
    return max(load - FEW_JOBS, 0) * other_share <= max(other_load - FEW_JOBS, 0) * share
