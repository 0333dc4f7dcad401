"""Arrivals of a group by hour of the week, and how they grow from week to week. Pure.

The growth is the median over pairs of whole days that are whole weeks apart, so one unusual day changes little. Without
such a pair (a history of about a week) it is 1. The curve is the mean of each hour of the week, brought to the level of the
last day. An hour of the week that was never seen has the mean of its hour of the day.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime, timedelta
from statistics import fmean, median
from typing import NamedTuple

WEEK = timedelta(days=7)
HOUR = timedelta(hours=1)
_GROWTH_MIN, _GROWTH_MAX = 0.5, 2.0
"""Bounds of the growth from one week to the next. What is beyond them is a beginning or an end, and no growth."""


class ArrivalCurve(NamedTuple):
    """The forecast of one group."""

    by_hour_of_week: Mapping[int, float]
    """Arrivals in an hour, at the level of ``level_at``; 0 is the hour after Monday 00:00 UTC."""
    growth: float
    """Factor from one week to the next."""
    level_at: datetime

    def grown(self, moment: datetime) -> float:
        """The load at a moment over that of ``level_at``."""
        return float(self.growth ** ((moment - self.level_at) / WEEK))

    def at(self, hour: datetime) -> float:
        """Arrivals in the hour that begins then."""
        usual = self.by_hour_of_week.get(hour_of_week(hour))
        if usual is None:
            same = [count for key, count in self.by_hour_of_week.items() if key % 24 == hour.hour]
            usual = fmean(same or self.by_hour_of_week.values() or [0.0])
        return usual * self.grown(hour)


def hour_of_week(hour: datetime) -> int:
    """0 to 167."""
    return hour.weekday() * 24 + hour.hour


def fit_curve(
    counts: Mapping[datetime, float], first: datetime, last: datetime, growth: float | None = None
) -> ArrivalCurve:
    """The curve of one group.

    Args:
        growth: from week to week, if it is known of a longer history; bounded like one that is found here.
        counts: arrivals by the beginning of the hour (UTC); an hour without an arrival may be left out.
        first: the first hour of the history.
        last: its last hour, itself included.
    """
    hours = [first + HOUR * number for number in range(int((last - first) / HOUR) + 1)]
    level_at = last
    growth = _growth(_whole_days(counts, hours)) if growth is None else _bounded(growth)
    levels: dict[int, list[float]] = {}
    for hour in hours:
        level = counts.get(hour, 0.0) * growth ** ((level_at - hour) / WEEK)
        levels.setdefault(hour_of_week(hour), []).append(level)
    return ArrivalCurve({key: fmean(values) for key, values in levels.items()}, growth, level_at)


def _whole_days(counts: Mapping[datetime, float], hours: Iterable[datetime]) -> dict[date, float]:
    """Arrivals of the days of which the history has all 24 hours."""
    found: dict[date, list[float]] = {}
    for hour in hours:
        found.setdefault(hour.astimezone(UTC).date(), []).append(counts.get(hour, 0.0))
    return {day: sum(values) for day, values in found.items() if len(values) == 24}


def _growth(days: Mapping[date, float]) -> float:
    factors = []
    for early, before in days.items():
        for late, after in days.items():
            weeks, rest = divmod((late - early).days, 7)
            if weeks > 0 and not rest and before > 0 and after > 0:
                factors.append((after / before) ** (1 / weeks))
    return _bounded(median(factors)) if factors else 1.0


def _bounded(growth: float) -> float:
    return min(max(growth, _GROWTH_MIN), _GROWTH_MAX)


def forecast_error(curve: ArrivalCurve, counts: Mapping[datetime, float], hours: Iterable[datetime]) -> float | None:
    """Sum of the absolute errors over the sum of the arrivals; ``None`` without arrivals."""
    seen = [(counts.get(hour, 0.0), curve.at(hour)) for hour in hours]
    total = sum(count for count, _ in seen)
    return sum(abs(count - expected) for count, expected in seen) / total if total else None
