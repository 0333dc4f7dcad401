"""Arrivals by hour of the week, from the figures of roll-ups. Pure, but for one query of a small frame.

A job arrives when it is created. Hours without jobs count as such. Hours of the week are those of a time zone: where a change
of its clock repeats an hour, the second one is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime, timedelta, tzinfo
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

HOURS_OF_WEEK = 168
_HOUR_SECONDS = 3600


class HourlyArrivals(NamedTuple):
    """Jobs of a lane and priority that were created in one hour."""

    hour: int
    """Hours since 1970, UTC."""
    lane: str
    priority: str
    jobs: int


class HourOfWeek(NamedTuple):
    """One hour of the week, over all weeks of the history."""

    weeks: int
    """How often the hour lies wholly in the history; 0: it is unknown."""
    median: float
    """Jobs of the median week."""
    highest: int
    """Jobs of the week with the most."""


class ArrivalCurve(NamedTuple):
    """Arrivals of one lane and priority."""

    lane: str
    priority: str
    hours: tuple[HourOfWeek, ...]
    """The 168 hours of a week, Monday 00:00 first."""
    weeks: tuple[tuple[date, int], ...]
    """Jobs of each whole week of the history, by its Monday."""

    @property
    def growth(self) -> float | None:
        """Jobs of a week against the week before: the median of these ratios; ``None`` with fewer than two weeks that had
        jobs."""
        pairs = zip(self.weeks, self.weeks[1:], strict=False)
        ratios = [after / before for (monday, before), (next_monday, after) in pairs
                  if before and after and next_monday - monday == timedelta(days=7)]  # fmt: skip
        return median(ratios) if ratios else None

    @property
    def busiest(self) -> tuple[int, HourOfWeek] | None:
        """Number of the hour of the week with the highest median, and its figures; ``None``: no hour is known."""
        known = [(at, one) for at, one in enumerate(self.hours) if one.weeks]
        return max(known, key=lambda pair: (pair[1].median, -pair[0])) if known else None


def hourly_arrivals(throughput: DataFrame) -> list[HourlyArrivals]:
    """Arrivals of the figures by hour (``throughput`` of a roll-up). Grows with hours, lanes and priorities."""
    from pyspark.sql import functions as F

    hour = F.expr(f"unix_seconds(hour) DIV {_HOUR_SECONDS}").alias("at")
    rows = (
        throughput.groupBy(hour, "lane", "priority").agg(F.sum("submitted").alias("jobs")).where("jobs > 0").collect()
    )
    return [HourlyArrivals(row["at"], row["lane"], row["priority"], row["jobs"]) for row in rows]


def arrival_curves(
    arrivals: Iterable[HourlyArrivals], *, until: datetime, since: datetime | None = None, zone: tzinfo = UTC
) -> list[ArrivalCurve]:
    """The curve of each lane and priority, in the order of these names.

    Args:
        until: what came later is left out, and so is an hour that had begun only: the moment of the last roll-up.
        since: likewise; ``None``: from the first arrival on, of any lane and priority.
        zone: of the hours of the week.
    """
    found: dict[tuple[str, str], dict[int, int]] = {}
    for one in arrivals:
        by_hour = found.setdefault((one.lane, one.priority), {})
        by_hour[one.hour] = by_hour.get(one.hour, 0) + one.jobs
    if not found:
        return []
    beyond = int(until.timestamp()) // _HOUR_SECONDS
    first = min(min(by_hour) for by_hour in found.values())
    if since is not None:
        first = max(first, -int(-since.timestamp() // _HOUR_SECONDS))
    return [
        ArrivalCurve(lane, priority, *_curve(found[lane, priority], range(first, beyond), zone))
        for lane, priority in sorted(found)
    ]


def _curve(
    by_hour: dict[int, int], hours: Sequence[int], zone: tzinfo
) -> tuple[tuple[HourOfWeek, ...], tuple[tuple[date, int], ...]]:
    counts: list[dict[date, int]] = [{} for _ in range(HOURS_OF_WEEK)]
    for hour in hours:
        local = datetime.fromtimestamp(hour * _HOUR_SECONDS, zone)
        if local.fold:
            continue
        monday = local.date() - timedelta(days=local.weekday())
        of_week = counts[local.weekday() * 24 + local.hour]
        of_week[monday] = by_hour.get(hour, 0)
    curve = tuple(
        HourOfWeek(len(of_week), float(median(of_week.values())), max(of_week.values())) if of_week
        else HourOfWeek(0, 0.0, 0)
        for of_week in counts
    )  # fmt: skip
    # A change of the clock takes an hour out of its week.
    mondays = sorted({monday for of_week in counts for monday in of_week})
    whole = [monday for monday in mondays if sum(monday in of_week for of_week in counts) >= HOURS_OF_WEEK - 1]
    return curve, tuple((monday, sum(of_week.get(monday, 0) for of_week in counts)) for monday in whole)
