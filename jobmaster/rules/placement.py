"""Which route a new job takes into the cluster, and which bucket it gets.

Buckets are chosen by power-of-two-choices (Mitzenmacher 1996): draw two at random, take the emptier. Many producers share one
stale picture of the depths, so "always the emptiest" would send all of them to the same bucket. Two random choices do not,
and come within a constant of the best. Where owners take different shares of the jobs, both are drawn and compared by share.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from jobmaster.model.job import Durability

IDLE_OWNER_JOBS = 16
"""Up to this number of jobs may wait in a bucket whose owner is idle."""


class Route(StrEnum):
    """How a new job enters the cluster."""

    BUCKET = "bucket"
    """SavePending: straight into a bucket, acknowledged by its store."""
    MASTER_THEN_BUCKET = "master_then_bucket"
    """A row that is ASSIGNED from the start, then the copy into that bucket."""
    HELD = "held"
    """A row that waits in the master until it is nearly due."""


def route(due_us: int, now_us: int, transient_threshold_seconds: float, durability: Durability) -> Route:
    """The route of a job that is due at ``due_us`` (0 = at once; a past time counts as now).

    A job due later than the transient threshold waits in the master, whatever its durability. A job that must be a committed
    row goes into a bucket in the same submit only when it is due now; otherwise onboarding moves it in time.
    """
    wait_us = due_us - now_us if due_us else 0
    if wait_us > transient_threshold_seconds * 1_000_000:
        return Route.HELD
    if durability is Durability.MASTER:
        return Route.MASTER_THEN_BUCKET if wait_us <= 0 else Route.HELD
    return Route.BUCKET


def two_choices(count: int, first: float, second: float, shares: Sequence[float] | None = None) -> tuple[int, int]:
    """Two different positions among ``count`` (at least two); the chance of the first grows with its share.

    Args:
        first: a number in [0, 1) from the caller's source of randomness.
        second: another one.
        shares: of each position; ``None``: all are equal.
    """
    if shares is None:
        one = int(first * count)
        # The second choice differs from the first, so that two buckets are always compared.
        return one, (one + 1 + int(second * (count - 1))) % count
    total = sum(shares)
    one = _at(shares, first * total, -1)
    return one, _at(shares, second * (total - shares[one]), one)


def _at(shares: Sequence[float], point: float, without: int) -> int:
    """The position that covers a point when all positions but ``without`` lie end to end, each as long as its share."""
    last = 0
    for place, share in enumerate(shares):
        if place == without:
            continue
        last = place
        point -= share
        if point < 0.0:
            break
    return last


def first_gets_job(load: int, share: float, other_load: int, other_share: float) -> bool:
    """True when the first of two buckets gets the job: the bucket with less load for its share. Equal loads choose the first:
    it was drawn by share, so idle buckets get jobs by their shares, too.

    Between different shares ``IDLE_OWNER_JOBS`` jobs do not count: an idle owner takes them before the next job comes. If
    they counted, a bucket of small share would get no job while its last known depth is above zero, and without jobs no
    answer renews that depth.
    """
    if share == other_share:
        return load <= other_load
    return max(load - IDLE_OWNER_JOBS, 0) * other_share <= max(other_load - IDLE_OWNER_JOBS, 0) * share
