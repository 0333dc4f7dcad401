"""``jobmaster batch watch``: jobs that end a second, and the time that is left."""

from __future__ import annotations

from jobmaster.cli.commands.flow.batch import Pace, left_seconds
from jobmaster.model.flow.batch import BatchState, BatchView


def _view(tallied: int, state: BatchState = BatchState.CLOSED) -> BatchView:
    return BatchView(id_bytes=bytes(16), name="b", state=state, size=1000, tallied=tallied)


def test_the_pace_is_that_of_the_last_looks() -> None:
    pace = Pace()
    assert pace.per_second(_view(0), 10.0) is None
    assert pace.per_second(_view(50), 11.0) == 50.0
    assert [pace.per_second(_view(50), 11.0 + look) for look in range(1, 31)][-1] == 0.0, "the fast start is forgotten"


def test_the_time_that_is_left_is_known_while_jobs_end() -> None:
    assert left_seconds(_view(900), 30.0) == 4
    assert left_seconds(_view(1100), 30.0) == 0, "tallies may be ahead"
    assert left_seconds(_view(900), None) is None
    assert left_seconds(_view(900), 0.0) is None
    assert left_seconds(_view(900, BatchState.OPEN), 30.0) is None, "its size is not known"
