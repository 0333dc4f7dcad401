"""Batches are cut by rows and by bytes, and are smaller after a time-out."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobmaster.rules.batching import BatchSize, fitting_count, halves, split_batches


@pytest.mark.parametrize(
    ("sizes", "bytes_max", "count"),
    [
        ([], 10, 0),
        ([10], 10, 1),
        ([11], 10, 1),
        ([11, 1], 10, 1),
        ([5, 5, 1], 10, 2),
        ([0, 0, 0], 0, 3),
        ([1, 11], 10, 1),
    ],
)
def test_so_many_fit_into_one_batch(sizes: list[int], bytes_max: int, count: int) -> None:
    assert fitting_count(sizes, bytes_max) == count


@given(st.lists(st.integers(0, 30)), st.integers(1, 5), st.integers(1, 40))
def test_a_cut_keeps_order_and_bounds(sizes: list[int], rows_max: int, bytes_max: int) -> None:
    batches = split_batches(sizes, sizes, rows_max, bytes_max)
    assert [each for batch in batches for each in batch] == sizes
    assert all(batches)
    for batch in batches:
        assert len(batch) <= rows_max
        assert sum(batch) <= bytes_max or len(batch) == 1
    for one, other in pairwise(batches):
        assert len(one) == rows_max or sum(one) + other[0] > bytes_max, "as much as fits goes into one batch"


def test_halves() -> None:
    assert halves([1, 2, 3]) == ([1], [2, 3])


def test_a_time_out_halves_what_comes_after_it_and_success_restores_it_in_steps() -> None:
    size = BatchSize(2000, 1 << 20)
    size.timed_out(100, 1 << 16)
    assert (size.rows, size.bytes, size.whole) == (50, 1 << 15, False)
    size.timed_out(1000, 1 << 20)
    assert (size.rows, size.bytes) == (50, 1 << 15), "an older, larger batch makes it no larger"
    size.succeeded()
    assert (size.rows, size.bytes) == (56, 36_864), "an eighth more"
    for _ in range(100):
        size.succeeded()
    assert size.whole


def test_no_step_is_larger_than_a_thirty_second_of_the_whole() -> None:
    size = BatchSize(2000, 1 << 20)
    size.timed_out(2000, 1 << 20)
    size.succeeded()
    assert (size.rows, size.bytes) == (1062, (1 << 19) + (1 << 15))


def test_one_row_is_always_sent() -> None:
    size = BatchSize(2000, 1 << 20)
    for _ in range(40):
        size.timed_out(size.rows, size.bytes)
    assert size.rows == 1
    assert split_batches([7, 8], [100, 100], size.rows, size.bytes) == [[7], [8]]


def test_one_row_that_times_out_does_not_change_the_size() -> None:
    size = BatchSize(2000, 1 << 20)
    size.timed_out(1, 100)
    assert size.whole
