"""The model beside the measurement: which limits explain the measured waits, and how far the two still differ.

A wait in the model is the wait in the replay, and a delay that every job of the group has (the way to the agent, the
onboarding from the master). The delay is taken from the fastest tenth of the jobs: what only the slow jobs have is a queue,
or something that the model does not know.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from datetime import date
from typing import NamedTuple

from jobmaster.pipeline.plan.agent_simulation import Limits
from jobmaster.pipeline.plan.model import Daily, Group, jobs_of, wait_us

DIFFERENCE_MAX = 2.0
"""Above this factor between model and measurement the plan says nothing about an objective."""
_FASTEST = 0.1
_COMPARED = (0.1, 0.5, 0.9, 0.99)
_NO_DIFFERENCE_US = 1000.0
"""Differences below a millisecond do not decide between two explanations."""
_AS_GOOD = 0.2
"""A simpler explanation is taken if its mean error (log2) is at most that much above the smallest one."""
_IRRELEVANT = 0.25
"""Waits below this share of the objective agree: whatever they are, the objective is met."""


class Fit(NamedTuple):
    """An explanation of the measured waits."""

    limits: Limits
    delays_us: Mapping[Group, float]
    error: float
    """Mean of ``|log2(model / measured)|`` over groups and quantiles, weighted with jobs."""


class Comparison(NamedTuple):
    """Waits of one group in the present configuration, at one quantile, in microseconds."""

    measured_us: float
    model_us: float
    factor: float
    """The greater of the two over the smaller, at least 1. Waits far below the objective count as equal."""

    @property
    def agrees(self) -> bool:
        """True when the model may be believed."""
        return self.factor <= DIFFERENCE_MAX

    @property
    def unexplained_us(self) -> float:
        """What was measured above the model; at least 0."""
        return max(0.0, self.measured_us - self.model_us)


def factor_between(one_us: float, other_us: float, floor_us: float) -> float:
    """The greater over the smaller, both raised to a floor; at least 1."""
    low, high = sorted((max(one_us, floor_us), max(other_us, floor_us)))
    return high / low if low > 0 else 1.0


def relevant_us(objective_us: float) -> float:
    """Below it two waits do not differ in what they say about an objective."""
    return objective_us * _IRRELEVANT


def fit(
    measured: Mapping[Group, Daily],
    replays: Sequence[tuple[Limits, Mapping[Group, Daily]]],
    days: Collection[date] | None = None,
) -> Fit:
    """The simplest of several explanations that is about as good as the best one.

    Args:
        replays: of the present configuration under different limits, the simplest first; at least one.
        days: the days to look at; ``None``: all.
    """
    fits = [_fit(measured, limits, replayed, days) for limits, replayed in replays]
    best = min(one.error for one in fits)
    return next(one for one in fits if one.error <= best + _AS_GOOD)


def _fit(
    measured: Mapping[Group, Daily], limits: Limits, replayed: Mapping[Group, Daily], days: Collection[date] | None
) -> Fit:
    delays = {
        group: max(0.0, wait_us(histograms, _FASTEST, days) - wait_us(replayed.get(group), _FASTEST, days))
        for group, histograms in measured.items()
    }
    total, weights = 0.0, 0
    for group, histograms in measured.items():
        jobs = jobs_of(histograms, days)
        for quantile in _COMPARED:
            modelled = wait_us(replayed.get(group), quantile, days) + delays[group]
            total += jobs * math.log2(factor_between(wait_us(histograms, quantile, days), modelled, _NO_DIFFERENCE_US))
            weights += jobs
    return Fit(limits, delays, total / weights if weights else 0.0)


def compare(
    measured: Daily | None,
    replayed: Daily | None,
    delay_us: float,
    quantile: float,
    objective_us: float,
    days: Collection[date] | None = None,
) -> Comparison:
    """One group at one quantile."""
    measured_us, model_us = wait_us(measured, quantile, days), wait_us(replayed, quantile, days) + delay_us
    return Comparison(measured_us, model_us, factor_between(measured_us, model_us, relevant_us(objective_us)))
