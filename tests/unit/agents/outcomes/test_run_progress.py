"""Reports of handlers on their way to the master."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence

import pytest

from jobmaster.clock import new_id
from jobmaster.model.errors import InputError, Unavailable
from jobmaster.model.run_progress import TEXT_CHARS_MAX, RunProgress, checked_progress
from jobmaster.ports import ProgressLine
from jobmaster.telemetry import Telemetry
from jobmaster_agents.outcomes.run_progress import LINES_MAX, WAITING_MAX, RunProgressWriter


class Lines:
    """What the master got."""

    def __init__(self) -> None:
        self.calls: list[list[ProgressLine]] = []
        self.away = False

    async def report_progress(self, lines: Sequence[ProgressLine]) -> None:
        if self.away:
            raise Unavailable("the master is away")
        self.calls.append(list(lines))


async def test_the_last_report_of_a_run_is_stored_once() -> None:
    master = Lines()
    writer = RunProgressWriter(master, Telemetry())
    job_id = new_id()
    await writer.tick()
    for done in range(100):
        writer.note(job_id, 1, RunProgress(done=done))
    writer.note(job_id, 2, RunProgress(done=5, total=9, text="again"))
    await writer.tick()
    await writer.tick()
    assert master.calls == [[ProgressLine(job_id, 2, 5, 9, "again")]]


async def test_while_the_master_is_away_the_last_reports_wait_and_no_later_one_is_overwritten() -> None:
    master = Lines()
    writer = RunProgressWriter(master, Telemetry())
    early, late = new_id(), new_id()
    writer.note(early, 1, RunProgress(done=1))
    writer.note(late, 1, RunProgress(done=1))
    master.away = True

    async def refused(lines: Sequence[ProgressLine]) -> None:
        writer.note(late, 1, RunProgress(done=2))  # while the call is under way
        raise Unavailable("the master is away")

    master.report_progress = refused  # type: ignore[method-assign]
    await writer.tick()
    del master.report_progress
    master.away = False
    await writer.tick()
    (lines,) = master.calls
    assert {line.job_id: line.done for line in lines} == {early: 1, late: 2}


async def test_one_statement_and_the_memory_are_bounded() -> None:
    master, telemetry = Lines(), Telemetry()
    writer = RunProgressWriter(master, telemetry)
    ids = [new_id() for _ in range(WAITING_MAX + 7)]
    for job_id in ids:
        writer.note(job_id, 1, RunProgress(done=1))
    writer.note(ids[0], 1, RunProgress(done=2))
    await writer.tick()
    assert {len(lines) for lines in master.calls} == {LINES_MAX}
    stored = {line.job_id: line.done for lines in master.calls for line in lines}
    assert len(stored) == WAITING_MAX
    assert stored[ids[0]] == 2
    assert telemetry.value("progress_dropped") == 7


async def test_a_thread_may_report_at_any_moment_of_a_tick() -> None:
    class Interleaved(dict[bytes, tuple[int, RunProgress]]):
        """Another thread gets its turn after each call of the mapping, and reports a further run."""

        def report(self) -> None:
            if len(reported) < 100:
                reported.append(new_id())
                self[reported[-1]] = 1, RunProgress(done=len(reported))

        def __iter__(self) -> Iterator[bytes]:
            found = super().__iter__()
            self.report()
            return found

        def popitem(self) -> tuple[bytes, tuple[int, RunProgress]]:
            found = super().popitem()
            self.report()
            return found

    reported: list[bytes] = []
    master = Lines()
    writer = RunProgressWriter(master, Telemetry())
    writer._waiting = Interleaved()
    writer.note(new_id(), 1, RunProgress(done=1))
    for _ in range(200):
        await writer.tick()
    assert {line.job_id for lines in master.calls for line in lines} >= set(reported)
    assert len(reported) == 100


async def test_a_tick_that_is_cancelled_keeps_the_reports() -> None:
    class Waiting(Lines):
        async def report_progress(self, lines: Sequence[ProgressLine]) -> None:
            await asyncio.Event().wait()

    ids = [new_id() for _ in range(3)]
    writer = RunProgressWriter(Waiting(), Telemetry())
    for job_id in ids:
        writer.note(job_id, 1, RunProgress(done=1))
    tick = asyncio.create_task(writer.tick())
    await asyncio.sleep(0)
    writer.note(ids[0], 1, RunProgress(done=2))
    tick.cancel()
    with pytest.raises(asyncio.CancelledError):
        await tick
    writer._outcomes = master = Lines()
    await writer.tick()
    assert {line.job_id: line.done for line in master.calls[0]} == {ids[0]: 2, ids[1]: 1, ids[2]: 1}


async def test_threads_may_report_while_it_is_sent() -> None:
    master = Lines()
    writer = RunProgressWriter(master, Telemetry())
    ids = [new_id() for _ in range(3000)]

    def report(some: Sequence[bytes]) -> None:
        for done in range(20):
            for job_id in some:
                writer.note(job_id, 1, RunProgress(done=done))

    threads = [threading.Thread(target=report, args=(ids[part::3],)) for part in range(3)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        await writer.tick()
    await writer.tick()
    stored = {line.job_id: line.done for lines in master.calls for line in lines}
    assert stored == dict.fromkeys(ids, 19)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("3",), "done must be a number, not str"),
        ((True,), "done must be a number, not bool"),
        ((-1,), "done must be 0 or more and finite, not -1"),
        ((float("nan"),), "done must be 0 or more and finite, not nan"),
        ((10**400,), "done must be 0 or more and finite, not 1000"),
        ((1, float("inf")), "total must be 0 or more and finite, not inf"),
        ((1, 0), "total is 0"),
        ((1, None, 5), "text must be text, not int"),
    ],
)
def test_a_report_that_is_none_is_refused(arguments: tuple[object, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        checked_progress(*arguments, *(None, "")[len(arguments) - 1 :])


def test_the_text_of_a_report_is_cut_and_can_be_stored() -> None:
    assert checked_progress(1, 2, "x" * 500).text == "x" * (TEXT_CHARS_MAX - 1) + "…"
    assert checked_progress(1, 2, "a\0b\ud800").text == "ab?"
    assert checked_progress(5, 2, "").share == 1.0
    assert checked_progress(5, None, "").share is None
