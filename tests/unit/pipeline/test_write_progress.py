"""The estimate of the end of a write, and its state."""

from __future__ import annotations

from collections import deque

import pytest

from jobmaster.pipeline.steps.write_progress import Estimate, WriteState, estimate, write_state


@pytest.mark.parametrize(
    ("samples", "total", "expected"),
    [
        ([], 100, Estimate(0.0, None)),
        ([(1.0, 50)], 100, Estimate(0.0, None)),
        ([(0.0, 0), (3.0, 100), (10.0, 200)], 1200, Estimate(20.0, 50.0)),
        ([(0.0, 0), (10.0, 200)], None, Estimate(20.0, None)),
        ([(0.0, 200), (10.0, 200)], 1200, Estimate(0.0, None)),
        ([(0.0, 200), (10.0, 150)], 1200, Estimate(0.0, None)),
        ([(0.0, 0), (10.0, 200)], 150, Estimate(20.0, 0.0)),
    ],
)
def test_the_rate_of_the_samples_gives_the_time_that_is_left(
    samples: list[tuple[float, int]], total: int | None, expected: Estimate
) -> None:
    """A task that runs again has read fewer rows than before: no rate is below zero."""
    assert estimate(deque(samples), total) == expected


def test_the_first_state_that_fits_counts() -> None:
    assert write_state(paused=True, held_back=True, lives=False, ended=True) is WriteState.ENDED
    assert write_state(paused=True, held_back=True, lives=False) is WriteState.PAUSED
    assert write_state(paused=False, held_back=True, lives=False) is WriteState.STOPPED
    assert write_state(paused=False, held_back=True, lives=None) is WriteState.HELD_BACK
    assert write_state(paused=False, held_back=False, lives=None) is WriteState.UNFINISHED
    assert write_state(paused=False, held_back=False) is WriteState.WRITING
