"""What the parts of a plan share: groups, histograms of waits by day, the configuration that is replayed, and statuss."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import date
from enum import StrEnum
from typing import NamedTuple

from jobmaster.pipeline.plan.agent_simulation import NO_LIMITS, Limits
from jobmaster.pipeline.report.histograms import quantiles

Group = tuple[str, str]
"""Lane and label of the priority."""
Daily = Mapping[date, Sequence[tuple[int, int]]]
"""A histogram (``bin, jobs``) for each day."""


class ObjectiveStatus(StrEnum):
    """Whether a group meets its objective."""

    MET = "met"
    NOT_MET = "not met"
    UNKNOWN = "unknown"
    """The model does not describe what was measured, or too few jobs were seen: it says neither."""


class Scenario(NamedTuple):
    """A configuration and a load to replay the history with."""

    agents: int
    buckets: Mapping[Group, int]
    """In the whole cluster."""
    slots: Mapping[Group, int]
    """Of one bucket."""
    limits: Limits = NO_LIMITS
    """Of one agent."""
    arrivals: Mapping[Group, float] = {}
    """Arrivals relative to those of the history; a group that is not named has 1."""


def wait_us(days: Daily | None, quantile: float, among: Collection[date] | None = None) -> float:
    """A quantile over several days, in microseconds; 0 without jobs.

    Args:
        among: the days that count; ``None``: all.
    """
    if days is None:
        return 0.0
    bins = [one for day, bins in days.items() if among is None or day in among for one in bins]
    return quantiles(bins, (quantile,))[0] or 0.0


def jobs_of(days: Daily | None, among: Collection[date] | None = None) -> int:
    """Number of jobs in the histograms."""
    if days is None:
        return 0
    return sum(jobs for day, bins in days.items() if among is None or day in among for _, jobs in bins)
