"""The formula against closed forms."""

from __future__ import annotations

import math

import pytest

from jobmaster.pipeline.plan.queueing import (
    BUCKETS_MAX,
    Load,
    buckets_by_formula,
    candidates_around,
    candidates_between,
    erlang_c,
    utilisation,
    wait_seconds,
)

POISSON = Load(per_second=7.0, service_seconds=0.1, service_cv2=1.0, arrival_cv2=1.0)


def test_erlang_c_is_that_of_the_books() -> None:
    assert erlang_c(1, 0.7) == pytest.approx(0.7)
    assert erlang_c(2, 1.0) == pytest.approx(1 / 3)
    assert erlang_c(10, 8.0) == pytest.approx(0.409, abs=5e-4)
    assert erlang_c(3, 3.0) == 1.0


def test_waits_of_one_server_match_the_textbook_formula() -> None:
    """M/M/1: P(W > t) = rho * exp(-(mu - lambda) t)."""
    assert wait_seconds(POISSON, 1, 1, 0.99) == pytest.approx(math.log(0.7 / 0.01) / 3)
    assert wait_seconds(POISSON, 1, 1, 0.2) == 0.0
    assert wait_seconds(POISSON._replace(per_second=10.0), 1, 1, 0.99) == math.inf


def test_irregular_arrivals_wait_longer_and_splitting_them_evens_them_out() -> None:
    bursts = POISSON._replace(arrival_cv2=9.0)
    assert wait_seconds(bursts, 1, 1, 0.99) == pytest.approx(5 * wait_seconds(POISSON, 1, 1, 0.99))
    assert wait_seconds(bursts, 4, 1, 0.99) < 3 * wait_seconds(POISSON, 4, 1, 0.99)


def test_the_screen_keeps_utilisation_bounded_and_returns_the_maximum_otherwise() -> None:
    found = buckets_by_formula(POISSON, 1, 0.99, 60.0)
    assert utilisation(POISSON, found, 1) <= 0.85 < 0.99
    assert buckets_by_formula(POISSON, 1, 0.99, 0.1) > found
    assert buckets_by_formula(POISSON._replace(per_second=1e6), 1, 0.99, 1.0) == BUCKETS_MAX
    assert candidates_around(8) == [1, 2, 4, 8, 16, 32]
    assert candidates_between(4, 8) == [5, 6, 7]
    assert candidates_between(4, 5) == []
