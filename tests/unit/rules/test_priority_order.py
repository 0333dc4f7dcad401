"""Age boost: what overtakes what, and when."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from jobmaster.model.job import Priority
from jobmaster.rules.priority_order import effective_level

BOOST = 900.0


def test_a_fresh_critical_job_goes_before_a_low_one_that_waited_45_minutes_less_a_second() -> None:
    assert effective_level(Priority.CRITICAL, 0, BOOST) > effective_level(Priority.LOW, 2699, BOOST)


def test_a_low_job_that_waited_longer_goes_first() -> None:
    assert effective_level(Priority.LOW, 2701, BOOST) > effective_level(Priority.CRITICAL, 0, BOOST)


def test_zero_turns_it_off() -> None:
    assert effective_level(Priority.LOW, 1e9, 0) < effective_level(Priority.MEDIUM, 0, 0)


@given(st.integers(1, 5), st.floats(0, 1e9), st.floats(0, 1e9))
def test_within_one_priority_the_older_is_never_behind(priority: int, one: float, other: float) -> None:
    older, younger = max(one, other), min(one, other)
    assert effective_level(priority, older, BOOST) >= effective_level(priority, younger, BOOST)
