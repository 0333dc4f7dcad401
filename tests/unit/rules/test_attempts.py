"""Back-off: the exact table, and the bounds of its jitter."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobmaster.rules.attempts import backoff_seconds, may_retry, runs_alone


@pytest.mark.parametrize(
    ("failures", "seconds"), [(1, 5), (2, 10), (3, 20), (4, 40), (10, 2560), (11, 3600), (500, 3600)]
)
def test_delays_without_jitter(failures: int, seconds: float) -> None:
    assert backoff_seconds(failures, base=5, factor=2, maximum=3600, jitter=0, chance=0.5) == seconds


@given(
    failures=st.integers(1, 10_000),
    base=st.floats(0, 1e4),
    factor=st.floats(1, 1e4),
    maximum=st.floats(0.001, 1e6),
    jitter=st.floats(0, 1),
    chance=st.floats(0, 1, exclude_max=True),
)
def test_a_delay_is_never_negative_nor_above_the_maximum(
    failures: int, base: float, factor: float, maximum: float, jitter: float, chance: float
) -> None:
    delay = backoff_seconds(failures, base=base, factor=factor, maximum=maximum, jitter=jitter, chance=chance)
    assert 0.0 <= delay <= maximum


def test_jitter_spreads_to_both_sides() -> None:
    low = backoff_seconds(1, base=10, factor=2, maximum=100, jitter=0.2, chance=0.0)
    high = backoff_seconds(1, base=10, factor=2, maximum=100, jitter=0.2, chance=0.999999)
    assert low == pytest.approx(8.0)
    assert high == pytest.approx(12.0, rel=1e-4)


def test_a_delay_before_a_failure_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        backoff_seconds(0, base=1, factor=2, maximum=10, jitter=0, chance=0)


def test_attempts_are_counted_including_the_first() -> None:
    assert [may_retry(used, 3) for used in (1, 2, 3, 4)] == [True, True, False, False]


@pytest.mark.parametrize(
    ("max_rescues", "expected"), [(1, [0, 1, 1, 1]), (2, [0, 1, 1, 1]), (3, [0, 0, 1, 1]), (4, [0, 0, 0, 1])]
)
def test_a_job_with_one_rescue_to_go_runs_alone_and_one_never_rescued_does_not(
    max_rescues: int, expected: list[int]
) -> None:
    assert [runs_alone(rescues, max_rescues) for rescues in range(4)] == [bool(alone) for alone in expected]
