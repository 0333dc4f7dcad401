"""Hours that differ from the same hour of earlier weeks.

The usual value is the median of the earlier weeks, the usual spread their median absolute deviation (MAD): one bad week among
them moves neither. A deviation is counted in spreads. Each measure has a least spread, because a few equal weeks do not make
the next job an anomaly.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta, tzinfo
from enum import StrEnum
from statistics import median
from typing import NamedTuple

MAD_TO_SIGMA = 1.4826
"""A normal distribution's standard deviation, in median absolute deviations."""
WEEKS_MIN = 3
"""With fewer earlier weeks nothing is known."""
JOBS_MIN = 20
"""Shares and latencies of fewer jobs say nothing."""
_HOUR_SECONDS = 3600


class Measure(StrEnum):
    """What is compared."""

    CREATED = "jobs created"
    FAILED = "share that failed"
    WAITING = "p95 of waiting"
    RUNNING = "p95 of running"


class Observation(NamedTuple):
    """A measure of some jobs in one hour."""

    subject: str
    """The jobs: of which handler, or lane and priority."""
    measure: Measure
    hour: int
    """Hours since 1970, UTC."""
    value: float
    """A number of jobs, a share, or microseconds."""
    jobs: int
    """How many jobs it is about."""


class Anomaly(NamedTuple):
    """An observation far from what is usual."""

    observation: Observation
    usual: float
    deviation: float
    """Distance in spreads; positive: above what is usual."""
    weeks: int
    """Number of earlier weeks that it was compared with."""


def weeks_before(hour: int, weeks: int, zone: tzinfo) -> list[int]:
    """The hours of earlier weeks with the same local time."""
    local = datetime.fromtimestamp(hour * _HOUR_SECONDS, zone)
    earlier = (local - timedelta(weeks=back) for back in range(1, weeks + 1))
    return [int(one.timestamp()) // _HOUR_SECONDS for one in earlier]


def find_anomalies(
    observations: Iterable[Observation],
    hours: Sequence[int],
    *,
    first_hour: int,
    weeks: int,
    threshold: float,
    zone: tzinfo,
) -> list[Anomaly]:
    """Anomalies of some hours, the greatest deviation first.

    Args:
        observations: of these hours, and of those in earlier weeks. Without one, no job was created, and all else is unknown.
        first_hour: beginning of the history.
        weeks: how many earlier weeks to compare with.
        threshold: deviation from which on an observation is an anomaly.
    """
    known = {(one.subject, one.measure, one.hour): one for one in observations}
    # A handler's weeks before its first job say nothing about it.
    since: dict[tuple[str, Measure], int] = {}
    for subject, measure, hour in known:
        since[subject, measure] = min(hour, since.get((subject, measure), hour))
    found = []
    for hour in hours:
        earlier = weeks_before(hour, weeks, zone)
        for (subject, measure), first in sorted(since.items()):
            here = _at(known, subject, measure, hour)
            past = [_at(known, subject, measure, one) for one in earlier if one >= max(first, first_hour)]
            before = [one for one in past if one is not None]
            if here is None or len(before) < WEEKS_MIN:
                continue
            usual, deviation = deviation_of(here, before)
            # Fewer failures and shorter waits are no reason for an alert.
            if deviation >= threshold or (measure is Measure.CREATED and deviation <= -threshold):
                found.append(Anomaly(here, usual, deviation, len(before)))
    return sorted(found, key=lambda one: (-abs(one.deviation), one.observation))


def deviation_of(here: Observation, before: Sequence[Observation]) -> tuple[float, float]:
    """The usual value, and the distance from it in spreads.

    Args:
        before: the same measure in earlier weeks; at least one.
    """
    logarithmic = here.measure in (Measure.WAITING, Measure.RUNNING)
    value, *past = (math.log(max(one.value, 1.0)) if logarithmic else one.value for one in (here, *before))
    usual = median(past)
    spread = MAD_TO_SIGMA * median(abs(one - usual) for one in past)
    distance = (value - usual) / max(spread, _least_spread(here, usual))
    return (math.exp(usual) if logarithmic else usual), distance


def _least_spread(here: Observation, usual: float) -> float:
    match here.measure:
        case Measure.CREATED:
            # As of independent arrivals, and a tenth of the count: no week is the exact copy of another.
            return max(math.sqrt(usual), 0.1 * usual, 1.0)
        case Measure.FAILED:
            return max(math.sqrt(usual * (1.0 - usual) / here.jobs), 0.01)
        case _:
            # Logarithms: waits within a quarter of the usual ones are the same.
            return 0.25


def _at(
    known: dict[tuple[str, Measure, int], Observation], subject: str, measure: Measure, hour: int
) -> Observation | None:
    """An observation; ``None`` when it says nothing."""
    found = known.get((subject, measure, hour))
    if measure is Measure.CREATED:
        return found or Observation(subject, measure, hour, 0.0, 0)
    return found if found is not None and found.jobs >= JOBS_MIN else None
