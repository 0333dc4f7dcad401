"""When a backlog is over, from its sizes."""

from __future__ import annotations

import pytest

from jobmaster.rules.drain_time import Trend, drain_time


def sizes(first: int, per_second: float, seconds: int = 30) -> list[tuple[float, int]]:
    return [(1000.0 + second, round(first + per_second * second)) for second in range(seconds + 1)]


@pytest.mark.parametrize(
    ("given", "trend", "seconds"),
    [
        ([], Trend.EMPTY, None),
        (sizes(300, -10), Trend.EMPTY, None),
        (sizes(500, 0, seconds=3), Trend.UNKNOWN, None),
        (sizes(500, 0), Trend.STEADY, None),
        (sizes(500, 20), Trend.GROWING, None),
        (sizes(1300, -10), Trend.FALLING, 100.0),
    ],
)
def test_the_trend_of_a_backlog_and_the_time_to_its_end(
    given: list[tuple[float, int]], trend: Trend, seconds: float | None
) -> None:
    found = drain_time(given)
    assert found.trend is trend
    assert found.seconds == (None if seconds is None else pytest.approx(seconds))


def test_one_batch_that_arrives_does_not_turn_the_estimate_over() -> None:
    falling = sizes(10_000, -100)
    falling[-1] = (falling[-1][0], falling[-1][1] + 300)
    assert drain_time(falling).trend is Trend.FALLING


def test_what_is_older_than_half_a_minute_does_not_count() -> None:
    assert drain_time([(900.0, 10), *sizes(1300, -10)]).seconds == pytest.approx(100.0)
