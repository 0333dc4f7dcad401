"""The thread pool: real threads, real blocking, and no sleep that hopes for an order."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable
from typing import Any, NoReturn

import pytest

from jobmaster.model.errors import Unavailable
from jobmaster_agents.execute.thread_pool import ThreadJob, ThreadPool, TooLate
from tests.support.patience import PATIENCE_SECONDS
from tests.support.waiting import until

SIZE = 4
Outcome = tuple[BaseException | None, object, int]


class Probe:
    """Submits jobs and collects how they ended."""

    def __init__(self, runner: ThreadPool) -> None:
        self.runner = runner
        self.ends: list[Outcome] = []
        self.loop_thread = threading.get_ident()
        self._more = asyncio.Event()

    def submit(self, fn: Callable[..., object], **kwargs: object) -> ThreadJob:
        return self.runner.submit(fn, kwargs, self._on_done)

    def _on_done(self, error: BaseException | None, result: object, ran_us: int) -> None:
        assert threading.get_ident() == self.loop_thread
        self.ends.append((error, result, ran_us))
        self._more.set()

    async def wait(self, count: int) -> list[Outcome]:
        """Until so many jobs have ended."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while len(self.ends) < count:
                self._more.clear()
                await self._more.wait()
        return self.ends

    async def one(self, fn: Callable[..., object], **kwargs: object) -> Outcome:
        """Run one job to its end."""
        before = len(self.ends)
        self.submit(fn, **kwargs)
        return (await self.wait(before + 1))[before]


def our_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("jobmaster-thread-")]


@pytest.fixture
async def probe() -> AsyncIterator[Probe]:
    runner = ThreadPool(SIZE, time.monotonic)
    yield Probe(runner)
    await runner.close(PATIENCE_SECONDS)
    await until(lambda: not our_threads())


async def test_a_result_comes_back_on_the_loop_with_its_running_time(probe: Probe) -> None:
    def add(left: int, right: int) -> int:
        assert threading.get_ident() != probe.loop_thread
        return left + right

    error, result, ran_us = await probe.one(add, left=2, right=3)
    assert (error, result) == (None, 5)
    assert 0 <= ran_us < PATIENCE_SECONDS * 1e6


async def test_no_thread_exists_before_the_first_job(probe: Probe) -> None:
    assert our_threads() == []
    await probe.one(os.getpid)
    assert len(our_threads()) == 1


async def test_whatever_a_handler_raises_is_its_own_end_and_not_the_threads(probe: Probe) -> None:
    def fail(error: BaseException) -> NoReturn:
        raise error

    errors = [ValueError("x"), SystemExit(3), KeyboardInterrupt(), GeneratorExit(), StopIteration(), BaseException("y")]
    for error in errors:
        assert (await probe.one(fail, error=error))[0] is error
        await until(lambda: len(probe.runner._idle) == 1)
    assert len(our_threads()) == 1
    assert (await probe.one(lambda: "still here"))[1] == "still here"


async def test_jobs_that_block_spread_over_all_threads(probe: Probe) -> None:
    barrier = threading.Barrier(SIZE, timeout=PATIENCE_SECONDS)
    for _ in range(3 * SIZE):  # each round passes only when SIZE jobs run at once
        probe.submit(barrier.wait)
    assert [error for error, _, _ in await probe.wait(3 * SIZE)] == [None] * 3 * SIZE
    assert len(our_threads()) == SIZE


async def test_jobs_that_block_spread_over_threads_that_sleep_already(probe: Probe) -> None:
    await test_jobs_that_block_spread_over_all_threads(probe)
    await until(lambda: len(probe.runner._idle) == SIZE)
    barrier = threading.Barrier(SIZE, timeout=PATIENCE_SECONDS)
    for _ in range(SIZE):
        probe.submit(barrier.wait)
    await probe.wait(4 * SIZE)
    assert all(error is None for error, _, _ in probe.ends)


async def test_a_finished_batch_wakes_the_loop_once(probe: Probe, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    wake_ups = 0
    call_soon_threadsafe = loop.call_soon_threadsafe

    def counted(*args: Any, **kwargs: Any) -> asyncio.Handle:
        nonlocal wake_ups
        wake_ups += 1
        return call_soon_threadsafe(*args, **kwargs)

    monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
    ended = threading.Semaphore(0)
    for _ in range(200):
        probe.submit(ended.release)
    for _ in range(200):
        ended.acquire()  # the loop stands still until all have run
    assert wake_ups <= SIZE
    await probe.wait(200)


async def test_many_jobs_all_end_exactly_once(probe: Probe) -> None:
    for value in range(5000):
        probe.submit(lambda value: value, value=value)
        if value % 97 == 0:
            await asyncio.sleep(0)
    await probe.wait(5000)
    await probe.one(os.getpid)
    assert sorted(result for _, result, _ in probe.ends[:5000] if isinstance(result, int)) == list(range(5000))
    assert len(probe.ends) == 5001


async def test_every_job_has_a_copy_of_the_submitters_context(probe: Probe) -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable")

    def soil() -> str:
        before = variable.get()
        variable.set("dirty")
        return before

    variable.set("the submitter's")
    assert [(await probe.one(soil))[1] for _ in range(3)] == ["the submitter's"] * 3


async def test_a_stuck_thread_is_replaced_and_its_late_result_thrown_away(probe: Probe) -> None:
    started, release = threading.Event(), threading.Event()

    def stuck() -> str:
        started.set()
        release.wait(PATIENCE_SECONDS)
        return "too late"

    job = probe.submit(stuck)
    await until(started.is_set)
    assert job.started_at is not None
    assert probe.runner.quarantine(job)
    assert not probe.runner.quarantine(job)
    assert probe.runner.quarantined == 1
    barrier = threading.Barrier(SIZE, timeout=PATIENCE_SECONDS)
    for _ in range(SIZE):  # a full set of threads is there beside the stuck one
        probe.submit(barrier.wait)
    await probe.wait(SIZE)
    assert len(our_threads()) == SIZE + 1
    release.set()
    await until(lambda: probe.runner.quarantined == 0)
    await until(lambda: len(our_threads()) == SIZE)
    await probe.one(os.getpid)
    assert "too late" not in [result for _, result, _ in probe.ends]
    assert not probe.runner.exhausted.is_set()


async def test_jobs_that_waited_behind_stuck_ones_run_after_the_quarantine(probe: Probe) -> None:
    release = threading.Event()
    stuck = [probe.submit(release.wait, timeout=PATIENCE_SECONDS) for _ in range(SIZE)]
    await until(lambda: all(job.started_at is not None for job in stuck))
    probe.submit(lambda: "waited")
    assert probe.runner.waiting == 1
    probe.runner.quarantine(stuck[0])
    assert (await probe.wait(1))[0][1] == "waited"
    release.set()
    await probe.wait(SIZE)


async def test_as_many_stuck_threads_as_slots_exhaust_the_pool_and_their_number_is_bounded(probe: Probe) -> None:
    release = threading.Event()
    for round_ in range(3 * SIZE):
        job = probe.submit(release.wait, timeout=PATIENCE_SECONDS)
        if round_ < 2 * SIZE:
            await until(lambda job=job: job.started_at is not None)  # type: ignore[misc]
        assert probe.runner.exhausted.is_set() == (round_ >= SIZE)
        assert probe.runner.quarantine(job)
    assert len(our_threads()) == 2 * SIZE
    release.set()
    await until(lambda: probe.runner.quarantined == 0)
    assert (await probe.one(lambda: "alive"))[1] == "alive"
    assert len(probe.ends) == 1


async def test_a_job_given_up_while_it_waits_is_never_started(probe: Probe) -> None:
    release, ran = threading.Event(), threading.Event()
    for _ in range(SIZE):
        probe.submit(release.wait, timeout=PATIENCE_SECONDS)
    job = probe.submit(ran.set)
    assert probe.runner.quarantine(job)
    assert probe.runner.quarantined == 0
    release.set()
    probe.submit(os.getpid)
    await probe.wait(SIZE + 1)
    assert not ran.is_set()


async def test_a_job_that_has_ended_cannot_be_given_up(probe: Probe) -> None:
    ended = threading.Event()
    job = probe.submit(ended.set)
    ended.wait()
    while not job.over:  # the loop stands still: its end is on the way, not delivered
        time.sleep(0.001)
    assert not probe.runner.quarantine(job)
    await probe.wait(1)
    assert probe.runner.quarantined == 0


async def test_a_careless_receiver_does_not_cost_the_others_their_results(probe: Probe) -> None:
    loop = asyncio.get_running_loop()
    reported: list[dict[str, Any]] = []

    def careless(error: BaseException | None, result: object, ran_us: int) -> None:
        raise RuntimeError("in on_done")

    loop.set_exception_handler(lambda _, context: reported.append(context))
    try:
        probe.runner.submit(os.getpid, {}, careless)
        await probe.one(os.getpid)
    finally:
        loop.set_exception_handler(None)
    assert [str(context["exception"]) for context in reported] == ["in on_done"]


async def test_nothing_of_a_job_stays_alive_after_it(probe: Probe) -> None:
    class Thing:
        pass

    def fail(thing: Thing) -> NoReturn:
        raise ValueError("x")

    gc.disable()  # the circle of error, traceback and frame must be opened by us, not found by the collector
    try:
        thing = Thing()
        gone = weakref.ref(thing)
        await probe.one(fail, thing=thing)
        probe.ends.clear()
        del thing
        await until(lambda: len(probe.runner._idle) == 1)
        assert gone() is None
    finally:
        gc.enable()


async def test_close_waits_for_what_runs_and_hands_back_what_waits() -> None:
    runner = ThreadPool(1, time.monotonic)
    probe = Probe(runner)
    started, release = threading.Event(), threading.Event()

    def hold() -> str:
        started.set()
        release.wait(PATIENCE_SECONDS)
        return "held"

    probe.submit(hold)
    waiting = probe.submit(os.getpid)
    await until(started.is_set)
    closing = asyncio.ensure_future(runner.close(PATIENCE_SECONDS))
    await asyncio.sleep(0)
    release.set()
    assert await closing == ([waiting], [])
    assert [result for _, result, _ in probe.ends] == ["held"]
    await until(lambda: not our_threads())
    with pytest.raises(Unavailable):
        probe.submit(os.getpid)


async def test_close_gives_up_what_does_not_end() -> None:
    runner = ThreadPool(2, time.monotonic)
    probe = Probe(runner)
    release = threading.Event()
    job = probe.submit(release.wait, timeout=PATIENCE_SECONDS)
    await until(lambda: job.started_at is not None)
    assert await runner.close(0.01) == ([], [job])
    assert runner.quarantined == 1
    release.set()
    await until(lambda: not our_threads())
    assert probe.ends == []


async def test_without_any_thread_a_job_is_refused_and_not_kept(probe: Probe, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: threading.Thread) -> NoReturn:
        raise RuntimeError("can't start new thread")

    ran = threading.Event()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(Unavailable):
            probe.submit(ran.set)
    await probe.one(os.getpid)
    await until(lambda: not probe.runner._running)
    assert not ran.is_set()
    with monkeypatch.context() as patch:  # with one thread there, a job waits for it instead
        patch.setattr(threading.Thread, "start", refuse)
        release = threading.Event()
        probe.submit(release.wait, timeout=PATIENCE_SECONDS)
        probe.submit(os.getpid)
        release.set()
        await probe.wait(3)


def test_threads_stuck_for_ever_do_not_hold_up_the_end_of_the_process(tmp_path: Any) -> None:
    script = (
        "import asyncio, sys, threading, time\n"
        f"sys.path[:] = {sys.path!r}\n"
        "from jobmaster_agents.execute.thread_pool import ThreadPool\n"
        "async def main():\n"
        "    job = ThreadPool(1, time.monotonic).submit(threading.Event().wait, {}, print)\n"
        "    while job.started_at is None:\n"
        "        await asyncio.sleep(0.001)\n"
        "asyncio.run(main())\n"
    )
    program = tmp_path / "stuck.py"
    program.write_text(script)
    assert subprocess.run([sys.executable, str(program)], timeout=PATIENCE_SECONDS, check=False).returncode == 0


async def test_a_job_that_no_thread_has_taken_can_be_taken_back_and_one_that_has_begun_cannot() -> None:
    pool, go_on, began = ThreadPool(1, time.monotonic), threading.Event(), threading.Event()
    ended: list[object] = []

    def holds() -> None:
        began.set()
        go_on.wait(PATIENCE_SECONDS)

    def note(name: str) -> Callable[[BaseException | None, object, int], None]:
        return lambda error, result, ran_us: ended.append((name, type(error)))

    runs = pool.submit(holds, {}, note("runs"))
    await until(began.is_set)
    lies = pool.submit(int, {}, note("lies"))
    late = pool.submit(int, {}, note("late"), start_before=time.monotonic())
    assert not pool.withdraw(runs)
    assert pool.waiting == 2
    assert pool.withdraw(lies)
    assert not pool.withdraw(lies)
    assert pool.waiting == 1, "nothing of it stays in the queue"
    cancelled = pool.submit(int, {}, note("cancelled"))
    assert pool.quarantine(cancelled)
    assert pool.waiting == 1
    go_on.set()
    await until(lambda: len(ended) == 2)
    assert ended == [("runs", type(None)), ("late", TooLate)]
    assert (runs.started_at is None, late.started_at is None) == (False, True), "what came too late has not begun"
    await pool.close(PATIENCE_SECONDS)


async def test_a_job_that_came_too_late_and_is_stopped_then_leaves_its_thread_to_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool, taken, go_on = ThreadPool(1, time.monotonic), threading.Event(), threading.Event()
    ended: list[object] = []
    run = ThreadJob.run

    def held(self: ThreadJob, now: Callable[[], float]) -> None:
        run(self, now)
        if self.started_at is None:
            taken.set()
            go_on.wait(PATIENCE_SECONDS)

    monkeypatch.setattr(ThreadJob, "run", held)
    late = pool.submit(int, {}, lambda *end: ended.append("late"), start_before=time.monotonic())
    await until(taken.is_set)
    assert not pool.withdraw(late), "a thread has it"
    assert pool.quarantine(late)
    go_on.set()
    pool.submit(int, {}, lambda *end: ended.append("next"))
    await until(lambda: bool(ended))
    assert (ended, pool.quarantined, pool._live) == (["next"], 0, 1)
    await pool.close(PATIENCE_SECONDS)
