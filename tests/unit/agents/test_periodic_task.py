"""Periodic tasks: delays, failures, kicks and the stop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from jobmaster.model.errors import CodeError, Unavailable
from jobmaster.telemetry import Telemetry
from jobmaster_agents import periodic_task
from jobmaster_agents.periodic_task import run_periodically
from tests.support.patience import PATIENCE_SECONDS


class Scripted:
    """A task that follows a script, one line per tick; the last line repeats."""

    name = "scripted"

    def __init__(self, *script: float | Exception, after: Callable[[int], None] | None = None) -> None:
        self.script = list(script)
        self.ticks = 0
        self.after = after
        self.ticked = asyncio.Condition()

    async def tick(self) -> float:
        step = self.script[min(self.ticks, len(self.script) - 1)]
        self.ticks += 1
        async with self.ticked:
            self.ticked.notify_all()
        if self.after is not None:
            self.after(self.ticks)
        if isinstance(step, Exception):
            raise step
        return step

    async def wait_ticks(self, count: int) -> None:
        async with self.ticked:
            await asyncio.wait_for(self.ticked.wait_for(lambda: self.ticks >= count), PATIENCE_SECONDS)


class Kicked(Scripted):
    def __init__(self, *script: float | Exception) -> None:
        super().__init__(*script)
        self.kicked = asyncio.Event()


async def test_a_tick_chooses_its_own_next_delay() -> None:
    stop = asyncio.Event()
    scripted = Scripted(0.0, 0.0, 0.001, 3600.0)
    task = asyncio.create_task(run_periodically(scripted, stop, Telemetry()))
    await scripted.wait_ticks(4)
    assert not task.done()
    stop.set()
    await asyncio.wait_for(task, PATIENCE_SECONDS)
    assert scripted.ticks == 4


async def test_stop_lets_the_present_tick_finish_and_no_other_begin() -> None:
    stop = asyncio.Event()
    scripted = Scripted(0.0, after=lambda ticks: stop.set() if ticks == 3 else None)
    await asyncio.wait_for(run_periodically(scripted, stop, Telemetry()), PATIENCE_SECONDS)
    assert scripted.ticks == 3


async def test_a_kick_wakes_a_task_before_its_delay() -> None:
    stop = asyncio.Event()
    scripted = Kicked(3600.0)
    task = asyncio.create_task(run_periodically(scripted, stop, Telemetry()))
    await scripted.wait_ticks(1)
    scripted.kicked.set()
    await scripted.wait_ticks(2)
    stop.set()
    await asyncio.wait_for(task, PATIENCE_SECONDS)


async def test_a_kick_during_a_tick_asks_for_another_one() -> None:
    stop = asyncio.Event()
    scripted = Kicked(3600.0)
    scripted.after = lambda ticks: scripted.kicked.set() if ticks == 1 else None
    task = asyncio.create_task(run_periodically(scripted, stop, Telemetry()))
    await scripted.wait_ticks(2)
    stop.set()
    await asyncio.wait_for(task, PATIENCE_SECONDS)
    assert scripted.ticks == 2


async def test_a_failing_tick_is_counted_and_tried_again_with_a_growing_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    delays: list[float] = []

    async def note(seconds: float, stopped: object, kicked: object) -> None:
        delays.append(seconds)
        await asyncio.sleep(0)

    monkeypatch.setattr(periodic_task, "_pause", note)
    stop = asyncio.Event()
    telemetry = Telemetry()
    failures = [Unavailable("the store is away")] * 10
    scripted = Scripted(*failures, 1.0, after=lambda ticks: stop.set() if ticks == 11 else None)
    await run_periodically(scripted, stop, telemetry, jitter=lambda: 0.0)
    assert telemetry.periodic_task_failures["scripted"] == 10
    assert telemetry.periodic_task_ticks["scripted"] == 11
    assert delays[:4] == [0.2, 0.4, 0.8, 1.6]
    assert max(delays) == periodic_task.BACKOFF_SECONDS_MAX
    assert delays[-1] == 1.0  # success ends the back-off


async def test_jitter_only_shortens(monkeypatch: pytest.MonkeyPatch) -> None:
    delays: list[float] = []

    async def note(seconds: float, stopped: object, kicked: object) -> None:
        delays.append(seconds)

    monkeypatch.setattr(periodic_task, "_pause", note)
    chances = iter([0.0, 0.5, 0.999999])
    stop = asyncio.Event()
    scripted = Scripted(10.0, after=lambda ticks: stop.set() if ticks == 3 else None)
    await run_periodically(scripted, stop, Telemetry(), jitter=lambda: next(chances))
    assert delays[0] == 10.0
    assert delays[1] == pytest.approx(9.5)
    assert delays[2] == pytest.approx(9.0, abs=0.001)


async def test_a_kick_does_not_cut_a_back_off_short() -> None:
    stop = asyncio.Event()
    scripted = Kicked(Unavailable("away"), 3600.0)
    task = asyncio.create_task(run_periodically(scripted, stop, Telemetry(), jitter=lambda: 0.0))
    await scripted.wait_ticks(1)
    began = asyncio.get_running_loop().time()
    scripted.kicked.set()
    await scripted.wait_ticks(2)
    assert asyncio.get_running_loop().time() - began >= periodic_task.BACKOFF_SECONDS * 0.9
    stop.set()
    await asyncio.wait_for(task, PATIENCE_SECONDS)


async def test_a_broken_invariant_ends_the_task() -> None:
    with pytest.raises(CodeError):
        await run_periodically(Scripted(CodeError("impossible")), asyncio.Event(), Telemetry())


async def test_cancelling_ends_the_task_and_leaves_no_other() -> None:
    before = asyncio.all_tasks()
    scripted = Kicked(3600.0)
    task = asyncio.create_task(run_periodically(scripted, asyncio.Event(), Telemetry()))
    await scripted.wait_ticks(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    for _ in range(3):
        await asyncio.sleep(0)
    assert asyncio.all_tasks() == before
