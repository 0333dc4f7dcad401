"""Arrival curves: the hours of a week in a zone, with hours in which nothing arrived, whole weeks, and growth."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from jobmaster.pipeline.report.arrivals import HourlyArrivals, HourOfWeek, arrival_curves

MONDAY = datetime(2030, 1, 7, tzinfo=UTC)


def hour(moment: datetime) -> int:
    return int(moment.timestamp()) // 3600


def arrivals(*weeks: int, at: timedelta = timedelta(days=1, hours=9)) -> list[HourlyArrivals]:
    """So many jobs in one hour of each week, one job at the beginning of the first."""
    found = [HourlyArrivals(hour(MONDAY), "default", "high", 1)]
    return found + [
        HourlyArrivals(hour(MONDAY + timedelta(weeks=week) + at), "default", "high", jobs)
        for week, jobs in enumerate(weeks)
        if jobs
    ]


def test_an_hour_of_the_week_has_the_median_and_the_highest_of_all_weeks_and_nothing_counts_too() -> None:
    (curve,) = arrival_curves(arrivals(10, 0, 30, 20), until=MONDAY + timedelta(weeks=4))
    assert curve.hours[24 + 9] == HourOfWeek(4, 15.0, 30)
    assert curve.hours[0] == HourOfWeek(4, 0.0, 1)
    assert curve.hours[5] == HourOfWeek(4, 0.0, 0)
    assert curve.busiest == (33, HourOfWeek(4, 15.0, 30))
    assert curve.weeks == tuple((date(2030, 1, 7 + 7 * week), jobs) for week, jobs in enumerate((11, 0, 30, 20)))


def test_an_hour_that_has_only_begun_and_what_was_before_are_left_out() -> None:
    late = MONDAY + timedelta(weeks=1, days=1, hours=9, minutes=59)
    (curve,) = arrival_curves(arrivals(10, 70), until=late, since=MONDAY + timedelta(days=1))
    assert curve.hours[24 + 9] == HourOfWeek(1, 10.0, 10), "9:59 of the second week is in an hour that goes on"
    assert curve.hours[0] == HourOfWeek(1, 0.0, 0), "the first Monday is before the beginning"
    assert curve.weeks == ()
    assert curve.growth is None


def test_growth_is_the_median_ratio_of_two_weeks() -> None:
    weeks = arrivals(100, 110, 121, 9, 0, 10, at=timedelta(hours=1))
    (curve,) = arrival_curves(weeks, until=MONDAY + timedelta(weeks=6))
    assert curve.growth == pytest.approx(110 / 101, rel=0.01)


def test_hours_are_those_of_the_zone_and_a_repeated_one_counts_once() -> None:
    zone = ZoneInfo("Europe/Berlin")
    start = datetime(2030, 10, 21, tzinfo=zone)  # the clock goes back on Sunday 27, at 3:00
    hours = [hour(start) + at for at in range(2 * 168 + 1)]
    (curve,) = arrival_curves(
        [HourlyArrivals(at, "default", "high", 1) for at in hours],
        until=datetime(2030, 11, 4, tzinfo=zone),
        zone=zone,
    )
    assert {(one.weeks, one.median, one.highest) for one in curve.hours} == {(2, 1.0, 1)}
    assert [jobs for _, jobs in curve.weeks] == [168, 168]


def test_each_lane_and_priority_has_its_curve_over_the_same_weeks() -> None:
    both = [*arrivals(10, 20), HourlyArrivals(hour(MONDAY + timedelta(days=1)), "mail", "low", 4)]
    curves = arrival_curves(both, until=MONDAY + timedelta(weeks=2))
    assert [(one.lane, one.priority, one.hours[24].weeks) for one in curves] == [
        ("default", "high", 2),
        ("mail", "low", 2),
    ]
    assert curves[1].hours[24] == HourOfWeek(2, 2.0, 4)
    assert arrival_curves([], until=MONDAY) == []
