"""How long before its due time a job should leave the master: long enough for the largest peak of due jobs. Pure."""

from __future__ import annotations

import math
from typing import NamedTuple

_STEPS_SECONDS = (10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600)
_RESERVE = 4.0
"""The rate is the highest one that was seen, at a moment when the master had nothing else to do."""
_LATE = 2.0
_LATE_US = 1_000_000.0


class ScheduledJobs(NamedTuple):
    """Jobs with a due time of their own that started."""

    jobs: int
    per_minute: int
    """The most that were due in one minute."""
    per_second: int
    """The most that started in one second."""
    wait_us: float
    """99 % of them waited no longer after their due time."""
    direct_wait_us: float
    """The same of all other jobs."""


class ThresholdAdvice(NamedTuple):
    """A transient threshold and its reason."""

    seconds: float
    reason: str


def advise_threshold(scheduled: ScheduledJobs, present_seconds: float) -> ThresholdAdvice:
    """The transient threshold for what was seen; the present one if it fits, or if nothing speaks for another one.

    Args:
        present_seconds: as configured.
    """
    if not scheduled.jobs or not scheduled.per_second:
        return ThresholdAdvice(present_seconds, "no job with a due time of its own has started")
    late = scheduled.wait_us > max(_LATE_US, _LATE * scheduled.direct_wait_us)
    needed = _RESERVE * scheduled.per_minute / scheduled.per_second
    seconds = float(next((step for step in _STEPS_SECONDS if step >= needed), _STEPS_SECONDS[-1]))
    peak = (
        f"{scheduled.per_minute} jobs were due in one minute, {scheduled.per_second} of such jobs started in one second"
    )
    if late:
        longer = max(seconds, min(float(_STEPS_SECONDS[-1]), 2 * present_seconds), present_seconds)
        waits = f"scheduled jobs waited {_factor(scheduled)} times as long as others"
        return ThresholdAdvice(longer, f"{waits}; {peak}")
    if seconds > present_seconds:
        return ThresholdAdvice(seconds, peak)
    if seconds * 2 <= present_seconds:
        return ThresholdAdvice(seconds, f"{peak}; jobs that leave the master later can be changed there for longer")
    return ThresholdAdvice(present_seconds, peak)


def _factor(scheduled: ScheduledJobs) -> str:
    factor = scheduled.wait_us / max(scheduled.direct_wait_us, 1.0)
    return "many" if not math.isfinite(factor) or factor >= 1000 else f"{factor:.1f}"
