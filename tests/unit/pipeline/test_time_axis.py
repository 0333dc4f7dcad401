"""The axis of time: a unit for every length of history, round labels that fit, days and weeks of the zone."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from jobmaster.pipeline.report.svg import DURATIONS_US, Axis, duration_ticks, whole_ticks
from jobmaster.pipeline.report.time_axis import DAY, HOUR, UNITS, WEEK, labels, moment_text, unit_for

BERLIN = ZoneInfo("Europe/Berlin")
START = datetime(2030, 3, 12, 10, 7, tzinfo=BERLIN).timestamp()
MINUTES, HOURS, DAYS = 60, 3600, 86_400


@pytest.mark.parametrize(
    ("seconds", "fine", "coarse"),
    [
        (0, "minute", "hour"),
        (HOURS, "minute", "hour"),
        (5 * HOURS, "5 minutes", "hour"),
        (DAYS, "15 minutes", "hour"),
        (8 * DAYS, "hour", "hour"),
        (9 * DAYS, "day", "day"),
        (365 * DAYS, "week", "week"),
        (20 * 365 * DAYS, "week", "week"),
    ],
)
def test_the_unit_follows_from_the_length_of_the_history(seconds: float, fine: str, coarse: str) -> None:
    assert unit_for(START, START + seconds, by_minutes=True).name == fine
    assert unit_for(START, START + seconds, by_minutes=False).name == coarse


@pytest.mark.parametrize("count", [2, 3, 7])
@pytest.mark.parametrize("seconds", [0, 300, HOURS, 7 * HOURS, DAYS, 5 * DAYS, 40 * DAYS, 366 * DAYS, 4000 * DAYS])
def test_labels_are_few_in_order_without_repeats_and_within_the_axis(seconds: float, count: int) -> None:
    found = labels(START, START + seconds, BERLIN, count)
    assert 1 <= len(found) <= count
    places = [place for place, _ in found]
    assert places == sorted(set(places))
    assert START <= places[0] <= places[-1] <= START + seconds
    assert len({text for _, text in found}) == len(found) or seconds > DAYS


def test_labels_are_round_in_the_zone_and_the_day_is_written_where_it_changes() -> None:
    assert [text for _, text in labels(START, START + DAYS, BERLIN, 4)] == [
        "12 Mar 12:00",
        "18:00",
        "13 Mar 00:00",
        "06:00",
    ]
    assert [text for _, text in labels(START, START + 366 * DAYS, UTC, 4)] == ["Apr 2030", "Jul", "Oct", "Jan 2031"]


@pytest.mark.parametrize("unit", UNITS)
def test_a_unit_begins_at_or_before_each_of_its_times_and_ends_after_it(unit: object) -> None:
    assert unit in UNITS
    one = UNITS[UNITS.index(unit)]
    for moment in (
        START,
        datetime(2030, 3, 31, 3, tzinfo=BERLIN).timestamp(),
        datetime(1970, 1, 1, 1, tzinfo=BERLIN).timestamp(),
    ):
        number = one.number(moment, BERLIN)
        assert one.start(number, BERLIN) <= moment < one.start(number + 1, BERLIN)


def test_a_day_of_the_zone_may_have_23_hours_and_a_week_begins_on_monday() -> None:
    changed = DAY.number(datetime(2030, 3, 31, 12, tzinfo=BERLIN).timestamp(), BERLIN)
    assert DAY.start(changed + 1, BERLIN) - DAY.start(changed, BERLIN) == 23 * HOURS
    week = WEEK.start(WEEK.number(START, BERLIN), BERLIN)
    assert moment_text(week, WEEK, BERLIN) == "week of 11 Mar 2030"
    assert moment_text(START, HOUR, BERLIN) == "12 Mar 2030 10:07"


def test_an_axis_that_counts_has_whole_labels_each_once() -> None:
    for most in (1, 2, 3, 7, 1000):
        ticks = whole_ticks(0.0, most * 1.08)
        assert ticks == [float(round(tick)) for tick in ticks]
        assert len(set(ticks)) == len(ticks) >= 2


@pytest.mark.parametrize(("low", "high"), [(1.2e6, 1.4e6), (2e3, 9e3), (5e3, 2e6), (10.0, 1e10), (3.1e6, 3.2e6)])
def test_a_logarithmic_axis_has_labels_also_within_a_decade(low: float, high: float) -> None:
    for ticks in (Axis(low, high, log=True).ticks(), duration_ticks(low, high)):
        assert 2 <= len(ticks) <= 9
        assert all(low <= tick <= high for tick in ticks)


def test_durations_are_labelled_as_people_count_them() -> None:
    assert duration_ticks(0.8e6, 1.3e8) == [1e6, 5e6, 2e7, 6e7]
    assert list(DURATIONS_US) == sorted(set(DURATIONS_US))
