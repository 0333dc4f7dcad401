"""Locks of a program: renewed while the body runs, lost before the master can give them away, given back at the end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from jobmaster.client.locks import held_lock
from jobmaster.client.locks.held_lock import HeldLock
from jobmaster.client.locks.lock import Lock
from jobmaster.client.locks.once import run_once
from jobmaster.client.locks.options import LockOptions, lock_options
from jobmaster.handlers.once import OnceAction
from jobmaster.model.errors import InputError, LockHeld, LockLost, OutcomeUnknown, Unavailable
from jobmaster.model.flow.lock import ATTEMPT_ENDED, OnceState
from jobmaster.ports import LockAnswer
from jobmaster.testing.memory.locks import MemoryLocks
from tests.support.hand_clock import HandClock
from tests.support.waiting import until

TTL = 0.4
"""On the clock of the test; the loop's own ticks are as short."""


class ScriptedLocks(MemoryLocks):
    """Locks in memory whose calls can fail."""

    def __init__(self, clock: HandClock) -> None:
        super().__init__(clock)
        self.silent = False
        """Calls get no answer."""
        self.lost_answers = 0
        """So many acquisitions are made, and their answers are lost."""
        self.down = 0
        """So many calls fail, and nothing happens."""
        self.renewals = 0

    async def _pass(self) -> None:
        if self.silent:
            await asyncio.Event().wait()
        if self.down:
            self.down -= 1
            raise Unavailable("the master is away")

    async def acquire(self, name: str, acquisition: bytes, label: str, ttl_seconds: float) -> LockAnswer:
        await self._pass()
        answer = await super().acquire(name, acquisition, label, ttl_seconds)
        if self.lost_answers:
            self.lost_answers -= 1
            raise OutcomeUnknown("no answer")
        return answer

    async def renew(self, name: str, fence: int, ttl_seconds: float) -> bool:
        self.renewals += 1
        await self._pass()
        return await super().renew(name, fence, ttl_seconds)

    async def release(self, name: str, acquisition: bytes) -> None:
        await self._pass()
        await super().release(name, acquisition)


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def locks(clock: HandClock) -> ScriptedLocks:
    return ScriptedLocks(clock)


@pytest.fixture
def new_lock(clock: HandClock, locks: ScriptedLocks) -> Callable[..., Lock]:
    def make(name: str = "import", wait: float | None = 0.0, label: str = "host pid 1") -> Lock:
        return Lock(HeldLock(locks, LockOptions(name, label, TTL, wait), clock))

    return make


async def holder_of(locks: MemoryLocks) -> str | None:
    held = await locks.held(10)
    return held[0].holder if held else None


# ------------------------------------------------------------ acquisition


async def test_a_lock_is_held_inside_and_free_afterwards(locks: ScriptedLocks, new_lock: Callable[..., Lock]) -> None:
    async with new_lock() as first:
        assert await holder_of(locks) == "host pid 1"
        first.check()
        with pytest.raises(LockHeld, match=r"lock 'import' is held by host pid 1 until \d{4}-.*Z") as refused:
            async with new_lock():
                raise AssertionError("two holders")
        assert refused.value.holder == "host pid 1"
        assert refused.value.expires_at is not None
    assert await holder_of(locks) is None
    async with new_lock() as second:
        assert second.fence > first.fence


async def test_a_program_that_waits_gets_the_lock_after_the_release(new_lock: Callable[..., Lock]) -> None:
    waiting = new_lock(wait=None)
    async with new_lock():
        attempt = asyncio.ensure_future(waiting.__aenter__())
        await asyncio.sleep(0.01)
        assert not attempt.done()
    await attempt
    waiting.check()
    await waiting.__aexit__(None, None, None)


async def test_the_time_to_wait_ends(clock: HandClock, new_lock: Callable[..., Lock]) -> None:
    async with new_lock():
        attempt = asyncio.ensure_future(new_lock(wait=0.2).__aenter__())
        await asyncio.sleep(0)
        assert not attempt.done()
        clock.now += 0.2
        with pytest.raises(LockHeld):
            await attempt


async def test_an_acquisition_with_a_lost_answer_is_found_again(
    locks: ScriptedLocks, new_lock: Callable[..., Lock]
) -> None:
    locks.lost_answers = 2
    async with new_lock(wait=None) as lock:
        assert lock.fence == (await locks.held(1))[0].fence


async def test_a_program_that_gives_up_after_a_lost_answer_leaves_no_lock_behind(
    locks: ScriptedLocks, new_lock: Callable[..., Lock]
) -> None:
    locks.lost_answers = 1
    with pytest.raises(Unavailable, match="lock 'import' was not acquired: no answer"):
        await new_lock().__aenter__()
    assert await holder_of(locks) is None


async def test_a_cancelled_attempt_leaves_no_lock_behind(locks: ScriptedLocks, new_lock: Callable[..., Lock]) -> None:
    locks.lost_answers = 10**6
    attempt = asyncio.ensure_future(new_lock(wait=None).__aenter__())
    await until(lambda: locks.lost_answers < 10**6 - 1, "two attempts")
    attempt.cancel()
    with pytest.raises(asyncio.CancelledError):
        await attempt
    assert await holder_of(locks) is None


async def test_a_lock_is_used_once(new_lock: Callable[..., Lock]) -> None:
    lock = new_lock()
    async with lock:
        pass
    with pytest.raises(InputError, match="has been used"):
        await lock.__aenter__()


# ------------------------------------------------------------ renewal and loss


async def test_renewals_extend_the_lock(clock: HandClock, locks: ScriptedLocks, new_lock: Callable[..., Lock]) -> None:
    async with new_lock() as lock:
        for turn in range(6):  # twice the ttl
            clock.now += TTL * 0.34
            await until(lambda turn=turn: locks.renewals > turn, "a renewal")  # type: ignore[misc]
        lock.check()
        with pytest.raises(LockHeld):
            await new_lock().__aenter__()


async def test_a_renewal_that_fails_is_repeated(
    clock: HandClock, locks: ScriptedLocks, new_lock: Callable[..., Lock]
) -> None:
    async with new_lock() as lock:
        locks.down = 2
        for _ in range(6):
            clock.now += TTL / 10
            await asyncio.sleep(TTL / 10)
        await until(lambda: not locks.down and locks.renewals >= 3, "the third renewal")
        clock.now += TTL * 0.34
        lock.check()


async def test_a_lock_that_an_operator_released_cancels_the_body(
    clock: HandClock, locks: ScriptedLocks, new_lock: Callable[..., Lock]
) -> None:
    cancelled = []

    async def body() -> None:
        async with new_lock():
            await locks.revoke("import", "ann")
            clock.now += TTL * 0.34
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append(True)
                raise

    with pytest.raises(LockLost, match=r"lock 'import' \(fencing number 1\) was lost: another program has taken it"):
        await body()
    assert cancelled
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


@pytest.mark.parametrize("how", ["silent", "down"])
async def test_without_an_answer_the_lock_is_lost_before_its_end(
    clock: HandClock, locks: ScriptedLocks, new_lock: Callable[..., Lock], how: str
) -> None:
    """The master gives the lock away at the end of the ttl, counted from a later moment than here."""
    began = clock.now

    async def turn() -> None:
        while True:
            clock.now += TTL / 100
            await asyncio.sleep(TTL / 100)

    async with asyncio.TaskGroup() as group:
        turning = group.create_task(turn())

        async def body() -> None:
            async with new_lock():
                locks.silent, locks.down = how == "silent", 0 if how == "silent" else 10**6
                await asyncio.Event().wait()

        with pytest.raises(LockLost, match="it was not renewed within its ttl"):
            await body()
        assert 0.8 * TTL < clock.now - began < TTL
        turning.cancel()


async def test_a_machine_that_slept_has_lost_the_lock(clock: HandClock, new_lock: Callable[..., Lock]) -> None:

    async def body() -> None:
        async with new_lock():
            clock.now += 3600.0
            await asyncio.Event().wait()

    with pytest.raises(LockLost):
        await body()


async def test_a_body_that_blocked_the_loop_until_the_end_has_lost_the_lock(
    clock: HandClock, new_lock: Callable[..., Lock]
) -> None:

    async def body() -> None:
        async with new_lock() as lock:
            clock.now += TTL
            with pytest.raises(LockLost):
                lock.check()

    with pytest.raises(LockLost):
        await body()


async def test_a_body_that_swallows_its_cancellation_ends_with_the_loss(
    clock: HandClock, locks: ScriptedLocks, new_lock: Callable[..., Lock]
) -> None:

    async def body() -> None:
        async with new_lock():
            clock.now += TTL
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                pass

    with pytest.raises(LockLost):
        await body()


async def test_the_bodys_own_error_comes_first(clock: HandClock, new_lock: Callable[..., Lock]) -> None:

    async def body() -> None:
        async with new_lock():
            clock.now += TTL
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                raise ValueError("own") from None

    with pytest.raises(ValueError, match="own") as raised:
        await body()
    assert "was lost" in raised.value.__notes__[0]


async def test_a_cancellation_from_outside_stays_one(
    clock: HandClock, locks: ScriptedLocks, new_lock: Callable[..., Lock]
) -> None:
    inside = asyncio.Event()

    async def body(lose: bool) -> None:
        async with new_lock():
            if lose:
                clock.now += TTL
            inside.set()
            await asyncio.Event().wait()

    for lose in (False, True):
        inside.clear()
        task = asyncio.ensure_future(body(lose))
        await inside.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        clock.now += TTL
    assert await holder_of(locks) is None


async def test_a_master_that_is_away_at_the_release_is_no_error(
    locks: ScriptedLocks, new_lock: Callable[..., Lock], caplog: pytest.LogCaptureFixture
) -> None:
    async with new_lock():
        locks.down = 1
    assert "could not be given back, it ends within 0.4 s" in caplog.text


# ------------------------------------------------------------ options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": ""}, "is empty"),
        ({"name": "x" * 201}, "has 201 characters, the limit is 200"),
        ({"name": "a\nb"}, r"U\+000A"),
        ({"name": 3}, "must be text"),
        ({"name": "once/load/3"}, "may not begin with 'once/'"),
        ({"ttl": 0.5}, "'ttl' must be 1 to 86400 seconds, not 0.5"),
        ({"ttl": timedelta(days=2)}, "'ttl' must be 1 to 86400 seconds"),
        ({"ttl": "30s"}, "'ttl' must be seconds or a timedelta"),
        ({"ttl": None}, "'ttl' must be seconds"),
        ({"ttl": float("nan")}, "'ttl' must be seconds"),
        ({"wait": -1}, "'wait' must be 0 seconds or more"),
        ({"wait": True}, "'wait' must be seconds"),
        ({"label": "x" * 101}, "has 101 characters, the limit is 100"),
    ],
)
def test_what_cannot_be_meant_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        lock_options(**{"name": "import", "ttl": 30, "wait": 0, "label": None, **options})


def test_options_of_a_lock() -> None:
    options = lock_options("import", timedelta(minutes=1), None, "nightly")
    assert (options.name, options.ttl_seconds, options.wait_seconds) == ("import", 60.0, None)
    assert options.label.endswith(": nightly")
    assert lock_options("import", 1, float("inf"), "").wait_seconds is None


# ------------------------------------------------------------ actions that run once


async def test_an_action_runs_once_for_each_version(clock: HandClock, locks: ScriptedLocks) -> None:
    ran: list[str] = []
    started, finish = asyncio.Event(), asyncio.Event()

    async def load() -> None:
        ran.append("load")
        started.set()
        await finish.wait()

    waits: list[LockHeld | None] = []
    first = asyncio.ensure_future(run_once(locks, clock, OnceAction("load", "1", load)))
    await started.wait()
    second = asyncio.ensure_future(run_once(locks, clock, OnceAction("load", "1", load), on_wait=waits.append))
    await until(lambda: waits, "the second program that waits")
    assert "lock 'once/load/1' is held by" in str(waits[0])
    with pytest.raises(LockHeld):
        await run_once(locks, clock, OnceAction("load", "1", load), wait_seconds=0.0)
    finish.set()
    assert (await first, await second, ran) == (True, False, ["load"])
    assert await run_once(locks, clock, OnceAction("load", "2", load))
    assert [(each.name, each.version) for each in await locks.actions(10)] == [("load", "2"), ("load", "1")]


async def test_an_action_that_fails_is_not_recorded_and_runs_again(clock: HandClock, locks: ScriptedLocks) -> None:
    def fails() -> None:
        raise LookupError("no rates")

    with pytest.raises(LookupError, match="no rates"):
        await run_once(locks, clock, OnceAction("load", "1", fails))
    assert await locks.held(10) == []
    (failed,) = await locks.actions(10)
    assert (failed.state, failed.failures, failed.error) == (OnceState.FAILED, 1, "LookupError: no rates")
    assert await run_once(locks, clock, OnceAction("load", "1", lambda: None))
    (done,) = await locks.actions(10)
    assert (done.state, done.failures, done.error) == (OnceState.DONE, 0, None)


async def test_an_action_is_listed_while_it_runs_and_as_failed_when_its_program_has_ended(
    clock: HandClock, locks: ScriptedLocks
) -> None:
    started = asyncio.Event()

    async def load() -> None:
        started.set()
        await asyncio.Event().wait()

    running = asyncio.ensure_future(run_once(locks, clock, OnceAction("load", "1", load)))
    await started.wait()
    assert [each.state for each in await locks.actions(10)] == [OnceState.RUNNING]
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert [(each.state, each.error) for each in await locks.actions(10)] == [(OnceState.FAILED, ATTEMPT_ENDED)]


async def test_an_action_whose_process_died_before_the_record_runs_again(
    clock: HandClock, locks: ScriptedLocks
) -> None:
    """Between the two effects: the action has run, and its line is not written. The lock of the dead process ends first."""
    assert (await locks.acquire("once/load/1", b"dead", "dead process", 30.0)).fence is not None
    with pytest.raises(LockHeld, match="dead process"):
        await run_once(locks, clock, OnceAction("load", "1", lambda: None), wait_seconds=0.0)
    clock.now += 30.1
    assert await run_once(locks, clock, OnceAction("load", "1", lambda: None), wait_seconds=0.0)
    assert not await locks.record("load", "1", "once/load/1", 1), "the dead process, if it lives after all"


async def test_an_action_whose_lock_is_lost_is_not_recorded(
    clock: HandClock, locks: ScriptedLocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def load() -> None:
        clock.now += 30.0
        await asyncio.Event().wait()

    monkeypatch.setattr(held_lock, "TICK_SECONDS_MAX", 0.01)
    with pytest.raises(LockLost):
        await run_once(locks, clock, OnceAction("load", "1", load))
    assert not await locks.is_done("load", "1")


async def test_the_lock_of_a_plain_function_is_kept_until_its_thread_ends(
    clock: HandClock, locks: ScriptedLocks
) -> None:
    """A thread cannot be cancelled; another program must not start the action meanwhile."""
    started, finish = threading.Event(), threading.Event()

    def load() -> None:
        started.set()
        finish.wait()

    running = asyncio.ensure_future(run_once(locks, clock, OnceAction("load", "1", load)))
    await until(started.is_set, "the thread")
    running.cancel()
    await asyncio.sleep(0.01)
    assert not running.done()
    assert [each.name for each in await locks.held(10)] == ["once/load/1"]
    finish.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await locks.held(10) == []
    assert not await locks.is_done("load", "1")
