"""What a plan is made from: the history in sums, some thousand numbers. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import date, datetime
from typing import NamedTuple

from jobmaster.pipeline.plan.model import Daily, Group, Scenario
from jobmaster.pipeline.plan.observed_limits import Observed
from jobmaster.pipeline.plan.queueing import Load
from jobmaster.pipeline.plan.transient_threshold import ScheduledJobs

Replayer = Callable[[Sequence[Scenario]], Sequence[Mapping[Group, Daily]]]
"""Histograms of waiting by group and day, for each scenario."""


class WeeklyArrivals(NamedTuple):
    """What the figures of roll-ups say of a group."""

    growth: float | None
    """From week to week; ``None``: unknown."""
    busiest: float
    """Arrivals of the median week in the busiest hour of the week."""


class Facts(NamedTuple):
    """The history that a plan is made from."""

    first: datetime
    last: datetime
    """First and last hour with a start."""
    starts: Mapping[Group, Mapping[datetime, float]]
    """Starts of jobs by hour."""
    busy_hours: Mapping[Group, Collection[datetime]]
    """The hours that are replayed."""
    loads: Mapping[Group, Load]
    measured: Mapping[Group, Daily]
    """Histograms of the measured waits in the busy hours."""
    buckets: Mapping[Group, int]
    """Buckets that had jobs of the group in the median busy hour."""
    agents: int | None
    """Agents that ran jobs in the median busy hour; ``None``: unknown."""
    observed: Mapping[date, Sequence[Observed]]
    scheduled: ScheduledJobs
    later: float
    """Share of the jobs that were created for a time after the history."""
    rolled_up: Mapping[Group, WeeklyArrivals] = {}
    """Arrivals of the whole history, by the figures of roll-ups; empty without any. They reach back further."""

    @property
    def days(self) -> list[date]:
        """Days with a start."""
        return sorted({hour.date() for counts in self.starts.values() for hour in counts})


def busiest_hours(work: Mapping[datetime, float], hours: int) -> set[datetime]:
    """The hours with the most work, and of each day the busiest one."""
    ordered = sorted(work, key=lambda hour: (-work[hour], hour))
    of_days: dict[date, datetime] = {}
    for hour in ordered:
        of_days.setdefault(hour.date(), hour)
    return {*ordered[:hours], *of_days.values()}
