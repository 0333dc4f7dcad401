"""Stopping handlers in worker processes: time-outs and cancellation, first by a request, then by a kill."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from jobmaster_agents.execute.attempt_result import ResultKind
from tests.support.processes import alive
from tests.support.waiting import until
from tests.unit.agents.execute.process_pool.process_pool_fixture import (
    NEVER_KILLED,
    QUICK,
    Make,
    content_of,
    make_job,
    value,
)

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
    assert ended.ran_us >= 80_000  # uvloop counts from when its turn began
    assert ended_file.read_text() == "finally"
    assert await value(pool, "pid") == pid  # it stopped at the request: its worker is as good as before


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
    worker, child = map(int, (await content_of(started)).split())
    assert alive(child)
    await pool.stop_running(job)
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
    await content_of(started)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert ended_file.read_text() == "finally"
    assert await value(pool, "pid") == int(started.read_text())


async def test_a_cancelled_run_kills_what_does_not_stop(make_pool: Make, tmp_path: Path) -> None:
    pool = make_pool(limits=QUICK)
    started = tmp_path / "started"
    run = asyncio.ensure_future(pool.run(make_job("swallows", started=str(started))))
    pid = int(await content_of(started))
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert not alive(pid)


async def test_a_second_cancellation_kills_at_once(make_pool: Make, tmp_path: Path) -> None:
    pool = make_pool(limits=NEVER_KILLED)
    started = tmp_path / "started"
    run = asyncio.ensure_future(pool.run(make_job("swallows", started=str(started))))
    pid = int(await content_of(started))
    run.cancel()
    await asyncio.sleep(0)
    assert not run.done()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    await until(lambda: not alive(pid))


async def test_a_running_job_that_is_stopped_ends_as_cancelled(make_pool: Make, tmp_path: Path) -> None:
    pool = make_pool(limits=NEVER_KILLED)
    started = tmp_path / "started"
    job = make_job("hangs", started=str(started))
    run = asyncio.ensure_future(pool.run(job))
    await content_of(started)
    await pool.stop_running(job)
    ended = await run
    assert ended.kind is ResultKind.CANCELLED
    assert ended.error is not None
    assert ended.error.reason == "cancelled"
    assert pool.running(job) is None


async def test_a_job_cancelled_while_it_waits_never_starts_and_takes_no_worker(make_pool: Make, tmp_path: Path) -> None:
    pool = make_pool()
    started, go_on = tmp_path / "started", tmp_path / "go"
    running = asyncio.ensure_future(pool.run(make_job("waits", started=str(started), go_on=str(go_on))))
    await content_of(started)
    waiting = asyncio.ensure_future(pool.run(make_job("hangs", started=str(tmp_path / "cancelled"))))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    go_on.touch()
    assert (await running).kind is ResultKind.OK
    assert await value(pool, "double", value=2) == 4
    assert not (tmp_path / "cancelled").exists()


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
    pid = int(await content_of(started))
    for number in (signal.SIGTERM, signal.SIGINT):
        os.kill(pid, number)
    await until(lambda: not _pending(pid))
    go_on.touch()
    assert (await run).kind is ResultKind.OK


def _pending(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    return any(int(line.split()[1], 16) for line in status.splitlines() if line.startswith(("SigPnd", "ShdPnd")))
