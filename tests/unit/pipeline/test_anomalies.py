"""Anomalies: what is usual is robust against one bad week, small differences are none, and a silent hour is one."""

from __future__ import annotations

from datetime import UTC, datetime, tzinfo
from zoneinfo import ZoneInfo

import pytest

from jobmaster.pipeline.report.anomalies import (
    JOBS_MIN,
    Anomaly,
    Measure,
    Observation,
    deviation_of,
    find_anomalies,
    weeks_before,
)

NOW = 168 * 3000


def seen(value: float, weeks_ago: int = 0, measure: Measure = Measure.CREATED, jobs: int = 1000) -> Observation:
    return Observation("handler h", measure, NOW - 168 * weeks_ago, value, jobs)


def found(
    here: Observation | None, before: list[Observation], *, first_hour: int = 0, zone: tzinfo = UTC
) -> list[Anomaly]:
    known = [one for one in (here, *before) if one is not None]
    return find_anomalies(known, [NOW], first_hour=first_hour, weeks=8, threshold=5.0, zone=zone)


def weeks(*values: float, measure: Measure = Measure.CREATED) -> list[Observation]:
    return [seen(value, back, measure) for back, value in enumerate(values, 1)]


def test_an_hour_far_from_the_median_of_the_weeks_is_found_also_beside_one_bad_week() -> None:
    usual = weeks(1000, 1020, 980, 9000, 1010, 990)
    (one,) = found(seen(3000), usual)
    assert (one.usual, one.weeks) == (1005.0, 6)
    assert one.deviation == pytest.approx((3000 - 1005) / 100.5)
    assert found(seen(1300), usual) == [], "within three tenths"


def test_an_hour_in_which_nothing_was_created_is_found_and_few_jobs_are_none() -> None:
    assert [one.observation.value for one in found(None, weeks(1000, 1020, 980))] == [0.0]
    assert found(None, weeks(3, 2, 4)) == [], "three jobs less may be chance"


def test_a_handler_of_which_there_were_no_jobs_before_is_unknown_for_three_weeks() -> None:
    assert found(seen(1000), [], first_hour=0) == []
    assert found(seen(1000), weeks(10, 10)) == []


def test_fewer_failures_and_shorter_waits_are_none_and_waits_are_compared_by_ratio() -> None:
    waits = weeks(1e6, 1.1e6, 0.9e6, measure=Measure.WAITING)
    (slow,) = found(seen(8e6, measure=Measure.WAITING), waits)
    assert slow.usual == pytest.approx(1e6)
    assert found(seen(2e6, measure=Measure.WAITING), waits) == []
    assert found(seen(1e3, measure=Measure.WAITING), waits) == []
    shares = weeks(0.02, 0.02, 0.02, measure=Measure.FAILED)
    assert len(found(seen(0.12, measure=Measure.FAILED), shares)) == 1
    assert found(seen(0.05, measure=Measure.FAILED), shares) == []
    assert found(seen(0.0, measure=Measure.FAILED), weeks(0.9, 0.9, 0.9, measure=Measure.FAILED)) == []


def test_shares_of_few_jobs_and_too_few_weeks_say_nothing() -> None:
    shares = weeks(0.0, 0.0, 0.0, measure=Measure.FAILED)
    assert len(found(seen(1.0, measure=Measure.FAILED, jobs=JOBS_MIN), shares)) == 1
    assert found(seen(1.0, measure=Measure.FAILED, jobs=JOBS_MIN - 1), shares) == []
    usual = weeks(10, 10, 10)
    assert len(found(seen(9000), usual)) == 1
    assert found(seen(9000), usual, first_hour=NOW - 3 * 168 + 1) == [], "the third week lies before the history"


def test_the_same_hour_is_that_of_the_clock_on_the_wall() -> None:
    zone = ZoneInfo("Europe/Berlin")
    after = datetime(2030, 4, 3, 9, tzinfo=zone)  # the clock went forward on March 31
    hours = weeks_before(int(after.timestamp()) // 3600, 2, zone)
    assert [datetime.fromtimestamp(hour * 3600, zone).hour for hour in hours] == [9, 9]
    assert int(after.timestamp()) // 3600 - hours[0] == 167


def test_a_deviation_counts_in_median_absolute_deviations() -> None:
    usual, deviation = deviation_of(seen(500), weeks(100, 200, 300, 400, 500))
    assert (usual, round(deviation, 6)) == (300.0, round(200 / 148.26, 6))
