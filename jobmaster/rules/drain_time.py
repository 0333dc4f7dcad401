"""When a backlog will be over, estimated from its size at several moments. Needs no counters of agents or producers."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

SPAN_SECONDS = 30.0
"""The estimate looks back so far."""
SPAN_SECONDS_MIN = 4.0
"""With less there is no estimate."""
STEADY_SHARE = 0.002
"""A backlog that changes by less than this share of itself in a second is steady."""


class Trend(StrEnum):
    """How a backlog develops."""

    EMPTY = "empty"
    UNKNOWN = "unknown"
    """It was not observed for long enough."""
    STEADY = "steady"
    GROWING = "growing"
    FALLING = "falling"


class DrainTime(NamedTuple):
    """An estimate."""

    trend: Trend
    per_second: float = 0.0
    """Change of the backlog, jobs a second; below 0: it falls."""
    seconds: float | None = None
    """Until it is empty, if it goes on falling like this."""


def drain_time(sizes: Sequence[tuple[float, int]]) -> DrainTime:
    """The estimate from ``(time in seconds, jobs)``, the oldest first.

    The slope is that of the least squares over the last ``SPAN_SECONDS``: the difference of the first and the last size alone
    would jump with every batch of jobs.
    """
    if not sizes or sizes[-1][1] == 0:
        return DrainTime(Trend.EMPTY)
    last_seconds, last = sizes[-1]
    chosen = [(at - last_seconds, size) for at, size in sizes if at >= last_seconds - SPAN_SECONDS]
    if len(chosen) < 3 or -chosen[0][0] < SPAN_SECONDS_MIN:
        return DrainTime(Trend.UNKNOWN)
    mean_at = sum(at for at, _ in chosen) / len(chosen)
    mean_size = sum(size for _, size in chosen) / len(chosen)
    spread = sum((at - mean_at) ** 2 for at, _ in chosen)
    slope = sum((at - mean_at) * (size - mean_size) for at, size in chosen) / spread
    if abs(slope) < max(STEADY_SHARE * last, 0.05):
        return DrainTime(Trend.STEADY, slope)
    if slope > 0:
        return DrainTime(Trend.GROWING, slope)
    return DrainTime(Trend.FALLING, slope, last / -slope)
