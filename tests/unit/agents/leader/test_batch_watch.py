"""The leader's look at batches: what is counted, what is cancelled, and when it looks again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest

from jobmaster.clock import new_id
from jobmaster.model.errors import Unavailable
from jobmaster.model.flow.batch import BatchState, ConcludedBatch, DueBatch, EndReason, range_of
from jobmaster.telemetry import Telemetry
from jobmaster_agents.event_log import EventLog
from jobmaster_agents.leader.batch_watch import AGAIN_SECONDS_MAX, LOOK_SECONDS, NOTES, QUIET_SECONDS, BatchWatch
from jobmaster_agents.leader.maintenance_runner import MORE
from jobmaster_agents.outcomes import batch_tally
from jobmaster_agents.outcomes.batch_tally import RECOUNT_SECONDS, BatchTally
from tests.support.hand_clock import HandClock


class FakeBatches:
    """Batches that have ended or not, and what was asked of them."""

    def __init__(self, clock: HandClock) -> None:
        self.clock = clock
        self.asked: list[tuple[Any, ...]] = []
        self.left: list[DueBatch] = []
        self.ended: set[bytes] = set()
        self.counting_seconds = 0.0
        self.is_full: list[bytes] = []
        self.during_full: Callable[[], None] = lambda: None
        self.notes: list[bytes] = []
        self.notes_fail: Exception | None = None

    async def due(self, limit: int, lost_seconds: float) -> list[DueBatch]:
        return self.left

    async def take_notes(self, agent_id: bytes, limit: int) -> tuple[list[bytes], int]:
        if self.notes_fail is not None:
            raise self.notes_fail
        taken, self.notes = self.notes[:limit], self.notes[limit:]
        return sorted(set(taken)), len(taken)

    async def conclude(self, batch_id: bytes, reason: EndReason | None = None) -> ConcludedBatch | None:
        self.asked.append(("conclude", batch_id, reason))
        self.clock.now += self.counting_seconds
        if reason is None and batch_id not in self.ended:
            return None
        state = BatchState.SUCCEEDED if reason is None else BatchState.FAILED
        return ConcludedBatch(batch_id, state, "b", None, frozenset({("default", 3)}))

    async def postpone(self, batch_id: bytes, seconds: float) -> None:
        self.asked.append(("postpone", batch_id, seconds))

    async def cancel_page(self, batch_id: bytes, after: bytes | None, limit: int) -> tuple[bytes | None, int]:
        self.asked.append(("cancel", batch_id))
        return None, 0

    async def request_cancel(self, batch_id: bytes, actor: str) -> list[bytes]:
        self.asked.append(("request", batch_id, actor))
        return [batch_id]

    async def full(self, ids: Iterable[bytes]) -> list[bytes]:
        answer = list(self.is_full)  # as of its snapshot
        self.during_full()
        return answer

    async def tally(self, agent_id: bytes, ended: Mapping[bytes, int]) -> None:
        self.asked.append(("tally", dict(ended)))


async def _notify(groups: Iterable[tuple[str, int]]) -> None:
    return None


@pytest.fixture
def batches() -> FakeBatches:
    return FakeBatches(HandClock())


def _due(batch_id: bytes, quiet: float, **others: Any) -> DueBatch:
    plain: dict[str, Any] = {
        "state": BatchState.CLOSED, "cancel_requested": False, "abandoned": False, "expired": False, "lost": False,
        "inner_left": False,
    }  # fmt: skip
    return DueBatch(id=batch_id, quiet_seconds=quiet, **{**plain, **others})


async def _look(batches: FakeBatches, *due: DueBatch) -> list[tuple[Any, ...]]:
    batches.left, batches.asked = list(due), []
    await _watch(batches, _tally(batches)).look()
    return batches.asked


def _watch(batches: FakeBatches, tally: BatchTally) -> BatchWatch:
    return BatchWatch(new_id(), batches, tally.noted, _notify, batches.clock, Telemetry(), EventLog())


def _tally(batches: FakeBatches) -> BatchTally:
    return BatchTally(new_id(), batches, _notify, batches.clock, Telemetry(), EventLog())


async def test_a_batch_whose_last_job_no_agent_has_ended_is_counted_at_once(batches: FakeBatches) -> None:
    one = range_of(new_id())
    tally = _tally(batches)
    batches.notes, batches.is_full = [one], [one]
    assert await _watch(batches, tally).look() is None
    assert tally.kicked.is_set()
    await tally.tick()
    assert batches.asked == [("conclude", one, None)]


async def test_a_note_that_comes_during_a_count_leads_to_another_count(batches: FakeBatches) -> None:
    """The count under way has read before the leader added what it took."""
    one = range_of(new_id())
    tally = _tally(batches)
    tally.noted([one])

    def taken() -> None:
        batches.clock.now += 0.001
        batches.is_full = [one]
        tally.noted([one])

    batches.during_full = taken
    await tally.tick()
    assert batches.asked == []
    batches.during_full = lambda: None
    await tally.tick()
    assert batches.asked == [("conclude", one, None)]


async def test_notes_that_cannot_be_taken_hold_up_no_batch_that_is_due(batches: FakeBatches) -> None:
    one = new_id()
    batches.left = [_due(one, QUIET_SECONDS + 1.0)]
    batches.notes_fail = Unavailable("the time limit of the statement")
    with pytest.raises(Unavailable):
        await _watch(batches, _tally(batches)).look()
    assert ("conclude", one, None) in batches.asked


async def test_more_notes_than_one_call_takes_are_taken_next(batches: FakeBatches) -> None:
    watch = _watch(batches, _tally(batches))
    batches.notes = [range_of(new_id())] * (NOTES + 1)
    assert [await watch.look(), await watch.look()] == [MORE, None]
    assert batches.notes == []


async def test_one_whose_jobs_still_end_is_not_counted(batches: FakeBatches) -> None:
    one = new_id()
    assert await _look(batches, _due(one, 1.0)) == [("postpone", one, QUIET_SECONDS)]


@pytest.mark.parametrize(("quiet", "again"), [(11.0, QUIET_SECONDS), (1000.0, 100.0), (100_000.0, AGAIN_SECONDS_MAX)])
async def test_the_longer_it_is_quiet_the_later_is_the_next_look(
    batches: FakeBatches, quiet: float, again: float
) -> None:
    """Whichever agent leads: the time comes from the row."""
    one = new_id()
    assert await _look(batches, _due(one, quiet)) == [("conclude", one, None), ("postpone", one, again)]


async def test_a_count_that_takes_long_is_not_repeated_soon(batches: FakeBatches) -> None:
    one, batches.counting_seconds = new_id(), 3.0
    for each in (_due(one, 11.0), _due(one, 0.0, cancel_requested=True)):
        assert (await _look(batches, each))[-1] == ("postpone", one, 60.0)


async def test_a_cancel_is_carried_on_also_in_what_was_opened_meanwhile(batches: FakeBatches) -> None:
    one = new_id()
    assert await _look(batches, _due(one, 0.0, cancel_requested=True, inner_left=True)) == [
        ("request", one, "leader"),
        ("cancel", one),
        ("conclude", one, None),
        ("postpone", one, LOOK_SECONDS),
    ]


async def test_one_that_ends_for_a_reason_is_counted_before(batches: FakeBatches) -> None:
    one, two = new_id(), new_id()
    batches.ended = {two}
    asked = await _look(batches, _due(one, 0.0, expired=True), _due(two, 0.0, expired=True))
    assert asked == [("conclude", one, None), ("conclude", one, EndReason.EXPIRED), ("conclude", two, None)]


async def test_tallies_that_are_ahead_of_the_jobs_cost_one_count_in_a_while(batches: FakeBatches) -> None:
    """A batch of several ranges, each of which gets notes all the time."""
    batch_id, ranges = range_of(new_id()), [range_of(new_id()) for _ in range(3)]
    tally = _tally(batches)
    batches.is_full, batches.counting_seconds = [batch_id], 0.5
    batch_tally_seconds, batch_tally.GATHER_SECONDS = batch_tally.GATHER_SECONDS, 0.0
    try:
        for lowest in ranges:
            tally._ended[lowest] = 1
            await tally.tick()
        assert batches.asked.count(("conclude", batch_id, None)) == 1
        batches.clock.now += RECOUNT_SECONDS + 0.1
        await tally.tick()
        assert batches.asked.count(("conclude", batch_id, None)) == 1, "a count of half a second rests for five"
        batches.clock.now += 5.0
        await tally.tick()
        assert batches.asked.count(("conclude", batch_id, None)) == 2
    finally:
        batch_tally.GATHER_SECONDS = batch_tally_seconds
