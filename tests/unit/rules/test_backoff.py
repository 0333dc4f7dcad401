"""Exponential back-off: the delays, and which failures are logged."""

from __future__ import annotations

from itertools import islice

from jobmaster.rules.backoff import backoff_delay, backoff_delays, is_logged


def test_delays_double_up_to_the_longest() -> None:
    assert [backoff_delay(failures, 0.5, 3.0) for failures in (1, 2, 3, 4, 5000)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    assert list(islice(backoff_delays(0.5, 3.0), 5)) == [0.5, 1.0, 2.0, 3.0, 3.0]


def test_a_delay_stays_finite_without_a_longest() -> None:
    assert backoff_delay(10_000, 1.0) == 2.0**64


def test_failures_are_logged_at_powers_of_two() -> None:
    assert [failures for failures in range(1, 40) if is_logged(failures)] == [1, 2, 4, 8, 16, 32]
