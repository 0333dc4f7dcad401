"""The formula: waiting times in queues with several servers, for measured variances of arrivals and services.

Allen-Cunneen: the mean wait of M/M/c, times half the sum of the squared coefficients of variation of arrivals and services;
its tail taken as exponential. Splitting arrivals among buckets makes each stream more regular, towards a Poisson stream.
It is accurate within a factor of about two, which is enough to choose candidates for the replay.
"""

from __future__ import annotations

import math
from typing import NamedTuple

BUSY_MAX = 0.85
"""Maximum planned utilisation: above it every burst becomes a queue."""
BUCKETS_MAX = 512


class Load(NamedTuple):
    """Load of a group in its busy hours."""

    per_second: float
    service_seconds: float
    """Mean."""
    service_cv2: float
    """Variance over the square of the mean."""
    arrival_cv2: float
    """Variance over the mean of the arrivals in a second; 1 is a Poisson stream."""


def erlang_c(servers: int, offered: float) -> float:
    """Share of jobs that wait in M/M/c; 1 if the queue grows without bound.

    Args:
        offered: mean number of busy servers.
    """
    if offered >= servers:
        return 1.0
    blocked = 1.0
    for number in range(1, servers + 1):
        blocked = offered * blocked / (number + offered * blocked)
    return blocked / (1 - offered / servers * (1 - blocked))


def utilisation(load: Load, buckets: int, slots: int) -> float:
    """Share of the slots that are busy."""
    return load.per_second * load.service_seconds / (buckets * slots)


def wait_seconds(load: Load, buckets: int, slots: int, quantile: float) -> float:
    """A quantile of waiting; infinite if the load exceeds the capacity."""
    busy = utilisation(load, buckets, slots)
    if busy >= 1:
        return math.inf
    waiting = erlang_c(slots, load.per_second / buckets * load.service_seconds)
    if waiting <= 1 - quantile:
        return 0.0
    irregular = (1 + (load.arrival_cv2 - 1) / buckets + load.service_cv2) / 2
    mean_of_waiters = load.service_seconds / (slots * (1 - busy)) * irregular
    return mean_of_waiters * math.log(waiting / (1 - quantile))


def buckets_by_formula(load: Load, slots: int, quantile: float, objective_seconds: float) -> int:
    """The fewest buckets that meet an objective by the formula; ``BUCKETS_MAX`` when none does."""
    for buckets in range(1, BUCKETS_MAX):
        if (
            utilisation(load, buckets, slots) <= BUSY_MAX
            and wait_seconds(load, buckets, slots, quantile) <= objective_seconds
        ):
            return buckets
    return BUCKETS_MAX


def candidates_around(buckets: int) -> list[int]:
    """Candidates around the result of the formula, and 1."""
    return sorted({max(1, min(BUCKETS_MAX, round(buckets * factor))) for factor in (0.25, 0.5, 1, 2, 4)} | {1})


def candidates_between(failing: int, passing: int, count: int = 4) -> list[int]:
    """Candidates strictly between two numbers."""
    step = (passing - failing) / (count + 1)
    return sorted({round(failing + step * at) for at in range(1, count + 1)} - {failing, passing})
