"""Curves of arrivals by hour of the week, and their growth."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobmaster.pipeline.plan.arrival_curve import HOUR, fit_curve, forecast_error, hour_of_week

MONDAY = datetime(2026, 3, 2, tzinfo=UTC)


def _weeks(week: list[float], growth: float, hours: int) -> dict[datetime, float]:
    """A week that repeats, each time greater by a factor; it grows from hour to hour."""
    return {MONDAY + HOUR * at: week[at % 168] * growth ** (at / 168) for at in range(hours)}


@settings(max_examples=20)
@given(
    week=st.lists(st.floats(1, 1e4), min_size=168, max_size=168), growth=st.floats(0.6, 1.9), days=st.integers(14, 30)
)
def test_a_week_that_grows_is_found_and_carried_on(week: list[float], growth: float, days: int) -> None:
    counts = _weeks(week, growth, days * 24)
    curve = fit_curve(counts, MONDAY, max(counts))
    assert curve.growth == pytest.approx(growth, rel=1e-6)
    for at in (days * 24, days * 24 + 50, days * 24 + 300):
        assert curve.at(MONDAY + HOUR * at) == pytest.approx(week[at % 168] * growth ** (at / 168), rel=1e-6)


@given(counts=st.dictionaries(st.integers(0, 400), st.floats(0, 1e6), min_size=1), factor=st.floats(0.1, 10))
def test_a_forecast_scales_with_the_history_and_is_never_negative(counts: dict[int, float], factor: float) -> None:
    history = {MONDAY + HOUR * at: count for at, count in counts.items()}
    scaled = {hour: count * factor for hour, count in history.items()}
    first, last, then = min(history), max(history), max(history) + timedelta(days=9, hours=5)
    one, other = (fit_curve(each, first, last).at(then) for each in (history, scaled))
    assert one >= 0
    assert other == pytest.approx(one * factor, rel=1e-6, abs=1e-9)


def test_within_a_week_nothing_is_said_of_growth_and_other_days_lend_their_hours() -> None:
    counts = {MONDAY + HOUR * at: 100.0 if at % 24 == 9 else 10.0 for at in range(48)}
    curve = fit_curve(counts, MONDAY, max(counts))
    assert curve.growth == 1.0
    saturday = MONDAY + timedelta(days=5)
    assert (curve.at(saturday + 9 * HOUR), curve.at(saturday)) == (100.0, 10.0)


def test_one_unusual_day_is_no_growth_and_an_hour_without_arrivals_counts() -> None:
    counts = _weeks([24.0] * 168, 1.0, 21 * 24)
    for at in range(24):
        counts[MONDAY + timedelta(days=20) + HOUR * at] = 2400.0
    assert fit_curve(counts, MONDAY, max(counts)).growth == 1.0
    half = {hour: count for hour, count in _weeks([24.0] * 168, 1.0, 14 * 24).items() if hour.day != 3}
    assert fit_curve(half, MONDAY, max(half)).at(MONDAY + timedelta(days=15)) == pytest.approx(12.0)
    assert hour_of_week(MONDAY + timedelta(days=6, hours=23)) == 167


def test_the_error_of_a_forecast_is_a_share_of_the_arrivals() -> None:
    counts = {MONDAY + HOUR * at: 10.0 for at in range(24)}
    curve = fit_curve(counts, MONDAY, max(counts))
    day = [MONDAY + timedelta(days=1) + HOUR * at for at in range(24)]
    assert forecast_error(curve, dict.fromkeys(day, 20.0), day) == pytest.approx(0.5)
    assert forecast_error(curve, {}, day) is None
