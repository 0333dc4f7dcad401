"""The back-test: the latest days are predicted from the others, with the present configuration, and compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime
from statistics import fmean

from jobmaster.pipeline.plan.arrival_curve import ArrivalCurve, fit_curve, forecast_error
from jobmaster.pipeline.plan.calibration import factor_between
from jobmaster.pipeline.plan.facts import Facts
from jobmaster.pipeline.plan.model import Daily, Group, Scenario, jobs_of
from jobmaster.pipeline.plan.plan_file import BackTest
from jobmaster.pipeline.plan.present_model import PresentModel, waits_of

_ONE_OF = 4
_DAYS_MAX = 7
_FACTOR_MAX = 10.0
_NO_DIFFERENCE_US = 1000.0
"""Waits below a millisecond count as one."""


def held_out_days(days: Sequence[date]) -> list[date]:
    """The latest quarter of the days, a week at most and a day at least; none of a single day."""
    count = min(_DAYS_MAX, max(1, len(days) // _ONE_OF)) if len(days) > 1 else 0
    return sorted(days)[len(days) - count :]


class BackTester:
    """Predicts the days that were held out.

    Args:
        model: made from the other days.
    """

    def __init__(self, facts: Facts, model: PresentModel, held_out: Sequence[date], quantile: float) -> None:
        self._facts = facts
        self._model = model
        self._held_out = frozenset(held_out)
        self._quantile = quantile
        hours = [hour for counts in facts.starts.values() for hour in counts if hour.date() not in self._held_out]
        self._curves = {group: fit_curve(self._training(group), min(hours), max(hours)) for group in facts.starts}

    def scenario(self) -> Scenario:
        """The present configuration under the load that is forecast for the held-out days."""
        factors = {group: self._factor(group, curve) for group, curve in self._curves.items()}
        return self._model.scenario._replace(arrivals=factors)

    def result(self, group: Group, replayed: Mapping[Group, Daily]) -> BackTest | None:
        """Predicted and measured of one group; ``None`` if it has no jobs on one of the two sides.

        Args:
            replayed: of `scenario`.
        """
        measured = self._facts.measured[group]
        if not jobs_of(measured, self._held_out) or not jobs_of(replayed.get(group), self._model.days):
            return None
        predicted = self._model.predicted(group, replayed.get(group), self._quantile)
        actual = waits_of(measured, self._quantile, self._held_out)
        curve, counts = self._curves[group], self._facts.starts[group]
        # Every hour of these days from the first start to the last one of the cluster: hours without a start count, too.
        hours = {hour for line in self._facts.starts.values() for hour in line if hour.date() in self._held_out}
        return BackTest(
            predicted=predicted,
            measured=actual,
            factor=factor_between(predicted.objective, actual.objective, _NO_DIFFERENCE_US),
            arrivals_error=forecast_error(curve, counts, hours),
        )

    def _training(self, group: Group) -> dict[datetime, float]:
        return {hour: count for hour, count in self._facts.starts[group].items() if hour.date() not in self._held_out}

    def _factor(self, group: Group, curve: ArrivalCurve) -> float:
        """Arrivals forecast for the busy hours of the held-out days, over those of the replayed hours."""
        hours = self._facts.busy_hours[group]
        before = [self._facts.starts[group][hour] for hour in hours if hour.date() not in self._held_out]
        expected = [curve.at(hour) for hour in hours if hour.date() in self._held_out]
        if not before or not expected or not fmean(expected):
            return 1.0
        return min(max(fmean(expected) / fmean(before), 1 / _FACTOR_MAX), _FACTOR_MAX)
