"""Isolated handlers: real worker processes, really killed. Who misbehaves hurts its own attempt and nobody else's."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jobmaster.clock import SystemClock, new_id
from jobmaster_agents.isolation import IsolatedJob, IsolatedPool, IsolatedResult, ResultKind, WorkerLimits
from jobmaster_agents.isolation_output import OutputTail

MODULE = "tests.agents.isolated_handlers"
PATIENCE_SECONDS = 20.0
RESULT_BYTES = 64 * 1024
ERROR_BYTES = 16 * 1024
QUICK = WorkerLimits(kill_grace_seconds=0.2)
NEVER_KILLED = WorkerLimits(kill_grace_seconds=PATIENCE_SECONDS)
LOGGER = logging.getLogger("tests.isolation")
Make = Callable[..., IsolatedPool]


def make_job(handler: str, *, timeout: float = PATIENCE_SECONDS, **args: Any) -> IsolatedJob:
    return IsolatedJob(
        job_id=new_id(),
        handler=f"iso.{handler}",
        args=msgspec.json.encode(args),
        token=3,
        attempt=2,
        max_attempts=4,
        rescues=1,
        lane="payroll",
        priority=4,
        tags=("a", "b"),
        metadata={"for": "tests"},
        timeout_seconds=timeout,
    )


def alive(pid: int) -> bool:
    """Runs; a zombie does not."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] not in "ZX"


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():  # noqa: ASYNC110  # other processes set no event of ours
            await asyncio.sleep(0.002)


async def told(path: Path) -> str:
    """What a handler has written into a file."""
    await until(path.exists)
    return path.read_text()


@pytest.fixture
async def make_pool() -> AsyncIterator[Make]:
    """Pools that are closed at the end, with the proof that no process of theirs is left."""
    pools: list[IsolatedPool] = []
    seen: set[int] = set()

    def make(size: int = 1, limits: WorkerLimits | None = None, paths: tuple[str, ...] = (MODULE,)) -> IsolatedPool:
        pool = IsolatedPool(
            paths, size, result_bytes=RESULT_BYTES, error_bytes=ERROR_BYTES, logger=LOGGER, clock=SystemClock(),
            limits=limits,
        )  # fmt: skip
        pools.append(pool)
        return pool

    yield make
    for pool in pools:
        seen.update(pool.pids)
        async with asyncio.timeout(PATIENCE_SECONDS):
            await pool.close()
        assert pool.pids == []
    assert [pid for pid in seen if alive(pid)] == []


async def value(pool: IsolatedPool, handler: str, **args: Any) -> Any:
    """Result of a job that must succeed."""
    ended = await pool.run(make_job(handler, **args))
    assert ended.kind is ResultKind.OK, ended
    return None if ended.result is None else json.loads(ended.result)


# ---------------------------------------------------------------- the ordinary


async def test_handlers_of_every_mode_run_and_workers_start_when_needed(make_pool: Make) -> None:
    pool = make_pool(2)
    assert pool.pids == []
    assert await value(pool, "double", value=21) == 42
    assert await value(pool, "async_double", value=21) == 42
    assert await value(pool, "thread_double", value=21) == 42
    assert await value(pool, "nothing") is None
    assert await value(pool, "pid") in pool.pids
    assert len(pool.pids) == 1
    assert os.getpid() not in pool.pids


async def test_the_context_says_which_run_it_is(make_pool: Make) -> None:
    job = make_job("seen", timeout=100.0)
    ended = await make_pool().run(job)
    seen = json.loads(ended.result or b"")
    assert 0 < seen.pop("remaining_seconds") <= 100.0
    assert seen == {
        "job_id": job.job_id.hex(), "token": 3, "attempt": 2, "max_attempts": 4, "rescues": 1, "lane": "payroll",
        "priority": 4, "tags": ["a", "b"], "metadata": {"for": "tests"},
    }  # fmt: skip
    assert 0 < ended.ran_us < PATIENCE_SECONDS * 1e6


async def test_async_handlers_share_one_loop_from_job_to_job(make_pool: Make) -> None:
    pool = make_pool()
    assert await value(pool, "async_loop") == await value(pool, "async_loop")
    assert await value(pool, "async_uses_thread") == await value(pool, "pid")  # and keep their worker


async def test_jobs_run_side_by_side_and_wait_when_all_workers_are_busy(make_pool: Make, tmp_path: Path) -> None:
    pool = make_pool(2)
    go_on = str(tmp_path / "go")
    runs = [
        asyncio.ensure_future(pool.run(make_job("waits", started=str(tmp_path / f"{n}"), go_on=go_on)))
        for n in range(3)
    ]
    await until(lambda: sum((tmp_path / f"{n}").exists() for n in range(3)) == 2)
    assert not any(run.done() for run in runs)
    Path(go_on).touch()
    results = await asyncio.gather(*runs)
    assert [result.kind for result in results] == [ResultKind.OK] * 3
    assert len({result.result for result in results}) == 2


async def test_a_worker_inherits_the_environment_and_no_descriptors(
    make_pool: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ISO_INHERITED", "yes")
    monkeypatch.setenv("PYTHONPATH", "/as/it/was")
    pool = make_pool()
    with (tmp_path / "held").open("w") as held:
        os.set_inheritable(held.fileno(), True)
        assert await value(pool, "open_files", inode=os.fstat(held.fileno()).st_ino) is False
    assert await value(pool, "environment", name="ISO_INHERITED") == "yes"
    assert await value(pool, "environment", name="PYTHONPATH") == "/as/it/was"
    monkeypatch.delenv("PYTHONPATH")
    assert await value(make_pool(), "environment", name="PYTHONPATH") is None


# ---------------------------------------------------------------- raising, and results that cannot be sent


async def test_what_a_handler_raises_is_told_with_its_place(make_pool: Make) -> None:
    pool = make_pool()
    ended = await pool.run(make_job("raises", text="broken by intent"))
    assert ended.kind is ResultKind.ERROR
    assert ended.error is not None
    assert (ended.error.type, ended.error.message, ended.error.reason) == ("ValueError", "broken by intent", "error")
    assert "isolated_handlers.py" in ended.error.traceback
    assert pool.ended_processes == 0


async def test_retry_and_cancel_are_words_of_their_own(make_pool: Make) -> None:
    pool = make_pool()
    retry = await pool.run(make_job("retry"))
    assert (retry.kind, retry.retry_after_seconds) == (ResultKind.RETRY, 12.5)
    cancel = await pool.run(make_job("cancel"))
    assert cancel.kind is ResultKind.CANCEL
    assert cancel.error is not None
    assert cancel.error.message == "pointless"


async def test_arguments_that_do_not_fit_and_unknown_handlers_do_not_run(make_pool: Make) -> None:
    pool = make_pool()
    ended = await pool.run(make_job("double", valeu=1))
    assert ended.kind is ResultKind.ERROR
    assert ended.error is not None
    assert ended.error.reason == "arguments"
    unknown = await pool.run(make_job("no_such_handler"))
    assert unknown.kind is ResultKind.NOT_STARTED
    assert unknown.error is not None
    assert "iso.no_such_handler" in unknown.error.message
    assert await value(pool, "double", value=1) == 2


@pytest.mark.parametrize(
    ("handler", "args", "says"),
    [
        ("nan", {}, "nan"),
        ("unencodable", {}, "cannot be encoded"),
        ("huge", {"size": RESULT_BYTES}, str(RESULT_BYTES)),
        ("huge", {"size": 50_000_000}, str(RESULT_BYTES)),
    ],
)
async def test_a_result_that_cannot_be_recorded_is_an_error_of_the_result(
    make_pool: Make, handler: str, args: dict[str, Any], says: str
) -> None:
    pool = make_pool()
    ended = await pool.run(make_job(handler, **args))
    assert ended.kind is ResultKind.ERROR
    assert ended.error is not None
    assert ended.error.reason == "result"
    assert says in ended.error.message
    assert pool.ended_processes == 0


async def test_a_huge_error_text_is_cut(make_pool: Make) -> None:
    ended = await make_pool().run(make_job("huge_error", size=50_000_000))
    assert ended.kind is ResultKind.ERROR
    assert ended.error is not None
    assert ended.error.truncated
    assert len(msgspec.json.encode(ended.error)) <= ERROR_BYTES


# ---------------------------------------------------------------- dying


@pytest.mark.parametrize(
    ("handler", "args", "says"),
    [
        ("sys_exit", {"code": 3}, "sys.exit(3)"),
        ("os_exit", {"code": 0}, "exit code 0"),
        ("os_exit", {"code": 7}, "exit code 7"),
        ("segfault", {}, "SIGSEGV"),
        ("kill_self", {}, "SIGKILL"),
        ("close_everything", {}, "SIGKILL"),
        ("garbage", {}, "SIGKILL"),
    ],
)
async def test_a_handler_that_ends_its_process_hurts_only_its_own_attempt(
    make_pool: Make, tmp_path: Path, handler: str, args: dict[str, Any], says: str
) -> None:
    pool = make_pool(2)
    started, go_on = tmp_path / "started", tmp_path / "go"
    neighbour = asyncio.ensure_future(pool.run(make_job("waits", started=str(started), go_on=str(go_on))))
    await told(started)
    ended = await pool.run(make_job(handler, **args))
    assert ended.kind is ResultKind.CRASHED
    assert ended.error is not None
    assert ended.error.reason == "crashed"
    assert says in ended.error.message
    assert not neighbour.done()
    assert await value(pool, "double", value=2) == 4
    go_on.touch()
    assert (await neighbour).kind is ResultKind.OK


async def test_the_last_output_is_kept_with_a_crash(make_pool: Make) -> None:
    pool = make_pool()
    ended = await pool.run(make_job("os_exit", code=1))
    assert ended.error is not None
    assert "last words" in ended.error.traceback
    ended = await pool.run(make_job("segfault"))
    assert ended.error is not None
    assert "Segmentation fault" in ended.error.traceback
    assert "in segfault" in ended.error.traceback
    assert "last words" not in ended.error.traceback


async def test_a_fork_that_returns_from_the_handler_says_nothing_for_the_job(make_pool: Make, tmp_path: Path) -> None:
    pool = make_pool()
    fork = tmp_path / "fork"
    assert await value(pool, "forks_and_returns", child_pid=str(fork)) == "the parent"
    await until(lambda: not alive(int(fork.read_text())))
    assert await value(pool, "double", value=3) == 6
    assert pool.ended_processes == 0


async def test_a_worker_killed_between_two_jobs_costs_no_job_anything(make_pool: Make) -> None:
    pool = make_pool()
    victim = await value(pool, "pid")
    os.kill(victim, signal.SIGKILL)
    await until(lambda: pool.pids == [])
    assert await value(pool, "pid") != victim


# ---------------------------------------------------------------- timeouts


async def test_a_plain_handler_is_interrupted_at_its_timeout_and_may_clean_up(make_pool: Make, tmp_path: Path) -> None:
    pool = make_pool(limits=NEVER_KILLED)
    started, ended_file = tmp_path / "started", tmp_path / "ended"
    pid = await value(pool, "pid")
    ended = await pool.run(make_job("hangs_tidily", timeout=0.1, started=str(started), ended=str(ended_file)))
    assert ended.kind is ResultKind.TIMEOUT
    assert ended.error is not None
    assert (ended.error.reason, ended.error.type) == ("timeout", "Timeout")
    assert "0.1 s" in ended.error.message
    assert ended.ran_us >= 100_000
    assert ended_file.read_text() == "finally"
    assert await value(pool, "pid") == pid  # it stopped when asked: its worker is as good as before


async def test_an_async_handler_is_cancelled_at_its_timeout(make_pool: Make, tmp_path: Path) -> None:
    pool = make_pool(limits=NEVER_KILLED)
    started, ended_file = tmp_path / "started", tmp_path / "ended"
    ended = await pool.run(make_job("async_hangs", timeout=0.1, started=str(started), ended=str(ended_file)))
    assert ended.kind is ResultKind.TIMEOUT
    assert ended_file.read_text() == "cancelled"
    assert await value(pool, "pid") == int(started.read_text())


@pytest.mark.parametrize("handler", ["swallows", "async_blocks"])
async def test_a_handler_that_does_not_stop_when_asked_is_killed_after_the_grace(
    make_pool: Make, tmp_path: Path, handler: str
) -> None:
    pool = make_pool(limits=QUICK)
    started = tmp_path / "started"
    ended = await pool.run(make_job(handler, timeout=0.1, started=str(started)))
    assert ended.kind is ResultKind.TIMEOUT
    assert ended.error is not None
    assert "was killed" in ended.error.message
    assert not alive(int(started.read_text()))
    assert await value(pool, "double", value=2) == 4


@pytest.mark.parametrize("handler", ["hangs_with_child", "holds_gil"])
async def test_what_a_hanging_handler_has_started_ends_with_it(make_pool: Make, tmp_path: Path, handler: str) -> None:
    pool = make_pool(limits=QUICK)
    started = tmp_path / "started"
    job = make_job(handler, started=str(started))
    run = asyncio.ensure_future(pool.run(job))
    worker, child = map(int, (await told(started)).split())
    assert alive(child)
    assert pool.cancel(job.job_id)
    assert (await run).kind is ResultKind.CANCELLED
    await until(lambda: not alive(worker) and not alive(child))


async def test_a_handler_that_finishes_when_it_is_stopped_has_finished(make_pool: Make, tmp_path: Path) -> None:
    pool = make_pool(limits=NEVER_KILLED)
    ended = await pool.run(make_job("finishes_when_stopped", timeout=0.1, started=str(tmp_path / "started")))
    assert (ended.kind, ended.result) == (ResultKind.OK, b'"finished after all"')


# ---------------------------------------------------------------- cancellation


async def test_a_cancelled_run_is_over_only_when_its_handler_is(make_pool: Make, tmp_path: Path) -> None:
    pool = make_pool(limits=NEVER_KILLED)
    started, ended_file = tmp_path / "started", tmp_path / "ended"
    run = asyncio.ensure_future(pool.run(make_job("hangs_tidily", started=str(started), ended=str(ended_file))))
    await told(started)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert ended_file.read_text() == "finally"
    assert await value(pool, "pid") == int(started.read_text())


async def test_a_cancelled_run_kills_what_does_not_stop(make_pool: Make, tmp_path: Path) -> None:
    pool = make_pool(limits=QUICK)
    started = tmp_path / "started"
    run = asyncio.ensure_future(pool.run(make_job("swallows", started=str(started))))
    pid = int(await told(started))
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert not alive(pid)


async def test_a_second_cancellation_kills_at_once(make_pool: Make, tmp_path: Path) -> None:
    pool = make_pool(limits=NEVER_KILLED)
    started = tmp_path / "started"
    run = asyncio.ensure_future(pool.run(make_job("swallows", started=str(started))))
    pid = int(await told(started))
    run.cancel()
    await asyncio.sleep(0)
    assert not run.done()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    await until(lambda: not alive(pid))


async def test_cancel_by_id_stops_a_running_job_and_says_so(make_pool: Make, tmp_path: Path) -> None:
    pool = make_pool(limits=NEVER_KILLED)
    started = tmp_path / "started"
    job = make_job("hangs", started=str(started))
    run = asyncio.ensure_future(pool.run(job))
    await told(started)
    assert pool.cancel(job.job_id)
    ended = await run
    assert ended.kind is ResultKind.CANCELLED
    assert ended.error is not None
    assert ended.error.reason == "cancelled"
    assert not pool.cancel(job.job_id)


async def test_cancel_at_once_does_not_ask(make_pool: Make, tmp_path: Path) -> None:
    pool = make_pool(limits=NEVER_KILLED)
    started = tmp_path / "started"
    job = make_job("swallows", started=str(started))
    run = asyncio.ensure_future(pool.run(job))
    await told(started)
    assert pool.cancel(job.job_id, at_once=True)
    assert (await run).kind is ResultKind.CANCELLED


async def test_a_job_cancelled_while_it_waits_never_starts_and_takes_no_worker(make_pool: Make, tmp_path: Path) -> None:
    pool = make_pool()
    started, go_on = tmp_path / "started", tmp_path / "go"
    running = asyncio.ensure_future(pool.run(make_job("waits", started=str(started), go_on=str(go_on))))
    await told(started)
    by_id, by_task = (make_job("hangs", started=str(tmp_path / name)) for name in ("by_id", "by_task"))
    waiting = [asyncio.ensure_future(pool.run(job)) for job in (by_id, by_task)]
    await asyncio.sleep(0)
    assert pool.cancel(by_id.job_id)
    waiting[1].cancel()
    assert (await waiting[0]).kind is ResultKind.CANCELLED
    with pytest.raises(asyncio.CancelledError):
        await waiting[1]
    go_on.touch()
    assert (await running).kind is ResultKind.OK
    assert await value(pool, "double", value=2) == 4
    assert not (tmp_path / "by_id").exists()
    assert not (tmp_path / "by_task").exists()


async def test_a_worker_handed_to_a_run_that_is_cancelled_that_moment_goes_back(make_pool: Make) -> None:
    pool = make_pool()
    await value(pool, "double", value=1)
    await until(lambda: len(pool._free) == 1)
    worker = pool._free.pop()
    run = asyncio.ensure_future(pool.run(make_job("double", value=2)))
    await asyncio.sleep(0)  # it waits
    pool._became_idle(worker)  # it is handed the worker ...
    run.cancel()  # ... and does not get to take it
    with pytest.raises(asyncio.CancelledError):
        await run
    assert pool._free == [worker]


async def test_a_terminate_signal_from_elsewhere_leaves_the_job_to_the_agent(make_pool: Make, tmp_path: Path) -> None:
    pool = make_pool()
    started, go_on = tmp_path / "started", tmp_path / "go"
    run = asyncio.ensure_future(pool.run(make_job("waits", started=str(started), go_on=str(go_on))))
    pid = int(await told(started))
    for number in (signal.SIGTERM, signal.SIGINT):
        os.kill(pid, number)
    await until(lambda: not _pending(pid))
    go_on.touch()
    assert (await run).kind is ResultKind.OK


def _pending(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    return any(int(line.split()[1], 16) for line in status.splitlines() if line.startswith(("SigPnd", "ShdPnd")))


# ---------------------------------------------------------------- floods


async def test_a_flood_of_output_passes_and_only_its_end_is_kept(make_pool: Make) -> None:
    pool = make_pool(limits=WorkerLimits(output_bytes_per_second=64 * 1024 * 1024, output_kept_bytes=1000))
    assert await value(pool, "floods", megabytes=8) == "flooded"
    output = next(iter(pool._shared))._output
    assert output is not None
    await until(lambda: output.seen_bytes > 8_000_000)
    assert len(output._tail) <= 2000
    assert len(output.text()) < 1100


async def test_a_flooding_handler_hurts_only_itself(make_pool: Make, tmp_path: Path) -> None:
    pool = make_pool(2, limits=QUICK)
    started = tmp_path / "started"
    flood = make_job("floods_for_ever", started=str(started))
    run = asyncio.ensure_future(pool.run(flood))
    await told(started)
    for number in range(20):
        assert await value(pool, "double", value=number) == 2 * number
    assert not run.done()
    assert pool.cancel(flood.job_id)
    ended = await run
    assert ended.kind is ResultKind.CANCELLED
    assert ended.error is not None
    assert "flood" in ended.error.traceback
    assert len(ended.error.traceback) <= ERROR_BYTES


async def test_output_is_read_at_a_bounded_rate_but_always_read() -> None:
    rate = 1024 * 1024
    read_fd, write_fd = os.pipe()
    os.set_blocking(write_fd, False)
    output = OutputTail(asyncio.get_running_loop(), read_fd, 1000, rate)
    started = time.monotonic()
    written = 0
    try:
        while written < rate // 2:
            try:
                written += os.write(write_fd, b"x" * 65536)
            except BlockingIOError:
                await asyncio.sleep(0)
            elapsed = time.monotonic() - started
            # One allowance at the start, one per pause, each overdrawn by at most one read.
            assert output.seen_bytes <= 4 * 65536 + 3 * rate * elapsed
        assert time.monotonic() - started > 0.1
        await until(lambda: output.seen_bytes == written)
    finally:
        os.close(write_fd)
        await until(lambda: output.seen_bytes == written)
        output.close()


# ---------------------------------------------------------------- leaving things behind


async def test_the_next_job_finds_the_process_as_it_should_be(make_pool: Make) -> None:
    pool = make_pool()
    before = await value(pool, "surroundings")
    assert await value(pool, "messes_up") == before["pid"]
    assert await value(pool, "surroundings") == before
    assert before["directory"] == os.getcwd()
    assert before["ignored"] == []


async def test_a_job_after_one_that_spoilt_the_signals_can_still_be_stopped(make_pool: Make, tmp_path: Path) -> None:
    pool = make_pool(limits=NEVER_KILLED)
    await value(pool, "messes_up")
    ended = await pool.run(make_job("hangs", timeout=0.1, started=str(tmp_path / "started")))
    assert ended.kind is ResultKind.TIMEOUT
    assert pool.ended_processes == 0


@pytest.mark.parametrize("handler", ["leaves_thread", "async_leaves_thread_work"])
async def test_a_worker_in_which_a_job_left_a_thread_is_replaced(make_pool: Make, handler: str) -> None:
    pool = make_pool()
    pid = await value(pool, handler)
    assert await value(pool, "pid") != pid
    assert not alive(pid)


async def test_a_worker_in_which_a_job_left_a_child_is_replaced_and_the_child_killed(make_pool: Make) -> None:
    pool = make_pool()
    worker, child = await value(pool, "leaves_child")
    assert await value(pool, "pid") != worker
    await until(lambda: not alive(child))


async def test_children_that_have_ended_are_reaped_and_the_worker_kept(make_pool: Make) -> None:
    pool = make_pool()
    pid = await value(pool, "leaves_zombie")
    assert await value(pool, "pid") == pid


async def test_tasks_left_on_the_loop_are_cancelled_after_the_job(make_pool: Make, tmp_path: Path) -> None:
    pool = make_pool()
    ended_file = tmp_path / "ended"
    pid = await value(pool, "async_leaves_task", ended=str(ended_file))
    assert await told(ended_file) == "cancelled"
    assert await value(pool, "pid") == pid


async def test_a_worker_is_replaced_after_its_number_of_jobs(make_pool: Make) -> None:
    pool = make_pool(limits=WorkerLimits(jobs_per_worker=3))
    pids = [await value(pool, "pid") for _ in range(7)]
    assert [pids.count(pid) for pid in dict.fromkeys(pids)] == [3, 3, 1]


async def test_a_worker_that_has_grown_too_large_is_replaced(make_pool: Make) -> None:
    pool = make_pool(limits=WorkerLimits(memory_bytes=200 * 1024 * 1024))
    pid = await value(pool, "pid")
    assert await value(pool, "grows", megabytes=1) == pid
    assert await value(pool, "grows", megabytes=200) == pid
    assert await value(pool, "pid") != pid


# ---------------------------------------------------------------- alone


@pytest.mark.parametrize("handler", ["double", "async_double", "thread_double"])
async def test_a_job_run_alone_has_a_process_of_its_own_whatever_its_mode(make_pool: Make, handler: str) -> None:
    pool = make_pool()
    ended = await pool.run_alone(make_job(handler, value=4))
    assert (ended.kind, ended.result) == (ResultKind.OK, b"8")
    await until(lambda: pool.pids == [] and pool.ended_processes == 1)


async def test_jobs_run_alone_never_meet_in_a_process(make_pool: Make) -> None:
    pool = make_pool(2)
    shared = await value(pool, "pid")
    alone = await asyncio.gather(*(pool.run_alone(make_job("pid")) for _ in range(4)))
    assert len({shared, *(int(ended.result or 0) for ended in alone)}) == 5
    assert await value(pool, "pid") == shared


async def test_a_job_that_crashes_alone_is_the_one_that_is_told_so(make_pool: Make) -> None:
    pool = make_pool()
    assert (await pool.run_alone(make_job("segfault"))).kind is ResultKind.CRASHED
    assert (await pool.run_alone(make_job("double", value=2))).kind is ResultKind.OK


async def test_a_job_cancelled_while_its_own_process_starts_does_not_run(make_pool: Make, tmp_path: Path) -> None:
    pool = make_pool()
    job = make_job("hangs", started=str(tmp_path / "started"))
    run = asyncio.ensure_future(pool.run_alone(job))
    await until(lambda: len(pool.pids) == 1)
    assert pool.cancel(job.job_id)
    assert (await run).kind is ResultKind.CANCELLED
    await until(lambda: pool.pids == [])
    assert not (tmp_path / "started").exists()


# ---------------------------------------------------------------- workers that do not start


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module ``iso_scratch`` to be written by the test."""
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path / "iso_scratch.py"


GOOD_MODULE = "from tests.agents.isolated_handlers import handlers\n"


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("import no_such_module_anywhere\n", "no_such_module_anywhere"),
        ("raise RuntimeError('broken on import')\n", "broken on import"),
        ("import os\nos._exit(9)\n", "exit code 9"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n", "SIGSEGV"),
    ],
)
async def test_handlers_that_cannot_be_imported_are_one_clear_error_and_no_attempt(
    make_pool: Make, module: Path, source: str, says: str
) -> None:
    module.write_text(source)
    pool = make_pool(paths=("iso_scratch",))
    for run in (pool.run, pool.run_alone):
        ended = await run(make_job("double", value=1))
        assert ended.kind is ResultKind.NOT_STARTED
        assert ended.error is not None
        assert says in ended.error.message
    assert pool.pids == []


async def test_a_module_that_hangs_on_import_is_given_up(make_pool: Make, module: Path) -> None:
    module.write_text("import time\nprint('still importing', flush=True)\ntime.sleep(3600)\n")
    pool = make_pool(limits=WorkerLimits(start_seconds=1.0), paths=("iso_scratch",))
    ended = await pool.run(make_job("double", value=1))
    assert ended.kind is ResultKind.NOT_STARTED
    assert ended.error is not None
    assert "within 1 s" in ended.error.message
    assert "still importing" in ended.error.traceback
    assert pool.pids == []


async def test_failed_starts_are_spaced_out_and_end_when_the_cause_does(
    make_pool: Make, module: Path, caplog: pytest.LogCaptureFixture
) -> None:
    module.write_text("raise RuntimeError('broken on import')\n")
    pool = make_pool(2, paths=("iso_scratch",))
    started = time.monotonic()
    with caplog.at_level(logging.ERROR, LOGGER.name):
        for _ in range(3):
            assert (await pool.run(make_job("double", value=1))).kind is ResultKind.NOT_STARTED
    assert time.monotonic() - started > 0.25 + 0.5
    assert len(caplog.records) == 3  # one start per job, not a loop of its own
    assert "3 in a row" in caplog.records[-1].message
    module.write_text(GOOD_MODULE)
    assert await value(pool, "double", value=1) == 2


async def test_a_program_that_cannot_be_started_costs_no_attempt(
    make_pool: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = make_pool()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", "/nowhere/python")
        ended = await pool.run(make_job("double", value=1))
    assert ended.kind is ResultKind.NOT_STARTED
    assert ended.error is not None
    assert "cannot start a worker process" in ended.error.message
    assert await value(pool, "double", value=1) == 2


# ---------------------------------------------------------------- the end


async def test_close_stops_what_runs_and_refuses_what_comes(make_pool: Make, tmp_path: Path) -> None:
    pool = make_pool(limits=NEVER_KILLED)
    started, ended_file = tmp_path / "started", tmp_path / "ended"
    run = asyncio.ensure_future(pool.run(make_job("hangs_tidily", started=str(started), ended=str(ended_file))))
    pid = int(await told(started))
    waiting = asyncio.ensure_future(pool.run(make_job("double", value=1)))
    await asyncio.sleep(0)
    await pool.close()
    assert (await run).kind is ResultKind.CANCELLED
    assert ended_file.exists()
    assert not alive(pid)
    for refused in (await waiting, await pool.run(make_job("double", value=1))):
        assert refused.kind is ResultKind.NOT_STARTED


async def test_close_ends_workers_that_are_just_starting(make_pool: Make, module: Path) -> None:
    module.write_text("import time\ntime.sleep(3600)\n")
    pool = make_pool(limits=QUICK, paths=("iso_scratch",))
    runs = [asyncio.ensure_future(run(make_job("double", value=1))) for run in (pool.run, pool.run_alone)]
    await until(lambda: len(pool.pids) == 2)
    pids = pool.pids
    await pool.close()
    assert [(await run).kind for run in runs] == [ResultKind.NOT_STARTED] * 2
    assert not any(alive(pid) for pid in pids)


async def test_kill_all_ends_every_handler_now(make_pool: Make, tmp_path: Path) -> None:
    pool = make_pool(2, limits=NEVER_KILLED)
    files = [tmp_path / "shared", tmp_path / "alone"]
    runs: list[asyncio.Future[IsolatedResult]] = [
        asyncio.ensure_future(run(make_job("swallows", started=str(file))))
        for run, file in zip((pool.run, pool.run_alone), files, strict=True)
    ]
    pids = [int(await told(file)) for file in files]
    pool.kill_all()
    assert [(await run).kind for run in runs] == [ResultKind.CRASHED] * 2
    assert not any(alive(pid) for pid in pids)


PARENT = """
import asyncio, logging, sys
sys.path[:] = {path!r}
from tests.agents.test_isolation import IsolatedPool, SystemClock, make_job
async def main():
    pool = IsolatedPool([{module!r}], 1, result_bytes=1000, error_bytes=1000, logger=logging.getLogger(), clock=SystemClock())
    await pool.run(make_job({handler!r}, timeout=3600.0, started={started!r}))
asyncio.run(main())
"""


@pytest.mark.parametrize("handler", ["hangs_with_child", "holds_gil"])
async def test_a_worker_and_all_it_started_die_with_the_agent(tmp_path: Path, handler: str) -> None:
    started = tmp_path / "started"
    script = PARENT.format(path=sys.path, module=MODULE, handler=handler, started=str(started))
    parent = subprocess.Popen([sys.executable, "-c", script])
    try:
        worker, child = map(int, (await told(started)).split())
        assert alive(worker)
        assert alive(child)
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    await until(lambda: not alive(worker) and not alive(child))
