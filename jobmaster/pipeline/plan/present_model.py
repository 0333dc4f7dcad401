"""The model of the present configuration: its replay, and what explains the measured waits."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import date

from jobmaster.pipeline.plan.calibration import Comparison, Fit, compare, fit
from jobmaster.pipeline.plan.facts import Facts, Replayer
from jobmaster.pipeline.plan.model import Daily, Group, Scenario, wait_us
from jobmaster.pipeline.plan.observed_limits import limits_to_try
from jobmaster.pipeline.plan.plan_file import PlanWaits

_COMPARED = (0.5,)
"""Compared beside the quantile of the plan."""


@dataclass(frozen=True)
class PresentModel:
    """What is known of the present configuration."""

    measured: Mapping[Group, Daily]
    scenario: Scenario
    """The present configuration under the limits that were found, with the load of the history."""
    replayed: Mapping[Group, Daily]
    fit: Fit
    days: Collection[date] | None
    """The days that it was made from; ``None``: all."""

    def compare(self, group: Group, quantile: float, objective_us: float) -> Comparison:
        """Model and measurement at the median and at a quantile: the one where they differ more."""
        delay = self.fit.delays_us[group]
        found = [
            compare(self.measured[group], self.replayed.get(group), delay, each, objective_us, self.days)
            for each in (*_COMPARED, quantile)
        ]
        return max(found, key=lambda one: one.factor)

    def modelled_us(self, group: Group, quantile: float) -> float:
        """The wait that the model has for the present configuration."""
        return wait_us(self.replayed.get(group), quantile, self.days) + self.fit.delays_us[group]

    def unexplained_us(self, group: Group, quantile: float) -> float:
        """Measured above the model; at least 0."""
        return max(0.0, wait_us(self.measured[group], quantile, self.days) - self.modelled_us(group, quantile))

    def beside_queues_us(self, group: Group, quantile: float) -> float:
        """The part of each predicted wait that no number of buckets, slots or agents changes."""
        return self.fit.delays_us[group] + self.unexplained_us(group, quantile)

    def predicted_us(self, group: Group, replayed: Daily | None, quantile: float) -> float:
        """The wait in a replay, with what the model does not know of the present configuration."""
        return wait_us(replayed, quantile, self.days) + self.beside_queues_us(group, quantile)

    def predicted(self, group: Group, replayed: Daily | None, quantile: float) -> PlanWaits:
        """The same at every quantile of a plan."""
        p50, p95, p99, objective = (self.predicted_us(group, replayed, each) for each in (0.5, 0.95, 0.99, quantile))
        return PlanWaits(p50=p50, p95=p95, p99=p99, objective=objective)


def waits_of(days: Daily | None, quantile: float, among: Collection[date] | None = None) -> PlanWaits:
    """Waits of histograms at every quantile of a plan."""
    p50, p95, p99, objective = (wait_us(days, each, among) for each in (0.5, 0.95, 0.99, quantile))
    return PlanWaits(p50=p50, p95=p95, p99=p99, objective=objective)


def calibrate(
    facts: Facts, present: Scenario, replay: Replayer, days_of_models: Sequence[Collection[date]]
) -> list[PresentModel]:
    """Models of the present configuration, each made from some days alone.

    Args:
        present: with the limits of the settings.
    """
    tried = []
    for days in days_of_models:
        observed = [one for day in days for one in facts.observed.get(day, ())]
        tried.append(limits_to_try(observed, present.agents, present.limits))
    every = list(dict.fromkeys(limits for some in tried for limits in some))
    replayed = dict(zip(every, replay([present._replace(limits=limits) for limits in every]), strict=True))
    found = []
    for days, limits in zip(days_of_models, tried, strict=True):
        best = fit(facts.measured, [(each, replayed[each]) for each in limits], days)
        found.append(
            PresentModel(facts.measured, present._replace(limits=best.limits), replayed[best.limits], best, days)
        )
    return found
