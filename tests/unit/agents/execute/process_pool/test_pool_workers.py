"""The pool of worker processes: floods, leftovers of jobs, failed starts, and no process that outlives its agent."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jobmaster_agents.execute.attempt_result import AttemptResult, ResultKind
from jobmaster_agents.execute.process_pool.worker_output import LINES, LINES_PER_SECOND, LineRate, OutputTail
from jobmaster_agents.execute.process_pool.worker_process import WorkerLimits
from tests.support.hand_clock import HandClock
from tests.support.patience import PATIENCE_SECONDS
from tests.support.processes import alive
from tests.support.waiting import until
from tests.unit.agents.execute.process_pool.process_pool_fixture import (
    ERROR_BYTES,
    LOGGER,
    MODULE,
    NEVER_KILLED,
    QUICK,
    Make,
    content_of,
    make_job,
    value,
)

# ---------------------------------------------------------------- the lease


async def test_a_job_whose_process_is_ready_too_late_is_not_started(make_pool: Make, tmp_path: Path) -> None:
    """A process takes its time to start, and the lease that was good when the job was admitted may be in doubt by then."""

    async def no() -> bool:
        return False

    started, pool = tmp_path / "started", make_pool(fresh=True)
    for run in (pool.run, pool.run_alone):
        ended = await run(make_job("floods_for_ever", started=str(started)), no)
        assert ended.kind is ResultKind.NOT_STARTED
    assert not started.exists()
    assert await value(pool, "double", value=4) == 8, "the worker is free again"


async def test_a_worker_that_dies_while_its_job_is_asked_about_is_not_given_it(make_pool: Make) -> None:
    pool, offered, taken_back = make_pool(), 0, 0

    def take_back() -> None:
        nonlocal taken_back
        taken_back += 1

    async def slowly() -> bool:
        nonlocal offered
        offered += 1
        if offered == 1:
            (pid,) = pool.pids
            os.kill(pid, signal.SIGKILL)
            await until(lambda: pool.ended_processes == 1)
        return True

    ended = await pool.run(make_job("double", value=4), slowly, take_back)
    assert (ended.kind, ended.result, offered, taken_back) == (ResultKind.OK, b"8", 2, 1)


async def test_stopped_while_it_is_asked_about_it_gives_its_worker_back(make_pool: Make) -> None:
    pool, offered = make_pool(), asyncio.Event()

    async def never() -> bool:
        offered.set()
        await asyncio.Event().wait()
        return True

    for run in (pool.run, pool.run_alone):
        offered.clear()
        running = asyncio.ensure_future(run(make_job("double", value=4), never))
        await offered.wait()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert await value(pool, "double", value=4) == 8


# ---------------------------------------------------------------- what jobs leave in the process


async def test_no_job_finds_the_context_variables_of_another(make_pool: Make) -> None:
    pool = make_pool()
    lines = {
        await value(pool, name, name=f"customer-{n}") for n in range(3) for name in ("speaks_for", "async_speaks_for")
    }
    assert lines == {"nobody"}


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
    await content_of(started)
    for number in range(20):
        assert await value(pool, "double", value=number) == 2 * number
    assert not run.done()
    await pool.stop_running(flood)
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
    assert await content_of(ended_file) == "cancelled"
    assert await value(pool, "pid") == pid


async def test_a_worker_is_replaced_after_its_number_of_jobs(make_pool: Make) -> None:
    pool = make_pool(limits=WorkerLimits(jobs_per_worker=3))
    pids = [await value(pool, "pid") for _ in range(7)]
    assert [pids.count(pid) for pid in dict.fromkeys(pids)] == [3, 3, 1]


@pytest.mark.slow
async def test_a_leaking_handler_cannot_fill_the_machine(make_pool: Make) -> None:
    limit, leak = 100, 30
    pool = make_pool(limits=WorkerLimits(growth_bytes=limit * MEGABYTE), fresh=True)
    pids, sizes = [], []
    for _ in range(14):
        pids.append(pid := await value(pool, "grows", megabytes=leak))
        if size := resident(pid):  # else it has just been replaced
            sizes.append(size)
    assert len(set(pids)) > 2
    assert max(sizes) - min(sizes) < (limit + 2 * leak) * MEGABYTE


@pytest.mark.slow
async def test_what_the_first_job_loads_is_no_growth(make_pool: Make) -> None:
    pool = make_pool(limits=WorkerLimits(growth_bytes=100 * MEGABYTE), fresh=True)
    pid = await value(pool, "grows", megabytes=200)
    assert [await value(pool, "grows", megabytes=1) for _ in range(3)] == [pid] * 3


MEGABYTE = 1024 * 1024


def resident(pid: int) -> int:
    """Bytes; 0 when the process has ended."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


# ---------------------------------------------------------------- what they print


def test_lines_of_all_workers_together_are_bounded_by_the_second_and_what_is_left_out_is_counted() -> None:
    clock = HandClock()
    rate = LineRate(clock.boottime)
    assert [rate.admit() for _ in range(LINES_PER_SECOND)] == [0] * LINES_PER_SECOND
    assert [rate.admit() for _ in range(7)] == [None] * 7
    clock.now += 1.0
    assert [rate.admit(), rate.admit()] == [7, 0]


async def test_what_a_handler_prints_is_passed_on_with_its_job(make_pool: Make) -> None:
    lines: list[tuple[str, bytes | None]] = []
    pool = make_pool(on_output=lambda line, pid, job: lines.append((line, job and job.job_id)))
    job = make_job("prints_lines", lines=["one", "two\r", "", "x" * 5000], end="no line break")
    assert (await pool.run(job)).kind is ResultKind.OK
    assert [line for line, whose in lines if whose == job.job_id] == [
        "one",
        "two",
        "x" * 1000 + " [...]",
        "no line break",
    ]


async def test_of_a_chatty_handler_the_first_lines_are_passed_on(make_pool: Make) -> None:
    lines: list[str] = []
    pool = make_pool(on_output=lambda line, pid, job: lines.append(line))
    for _ in range(2):
        lines.clear()
        assert (await pool.run(make_job("prints_lines", lines=["line"] * 500, end=""))).kind is ResultKind.OK
        assert lines == ["line"] * LINES + [f"[... {500 - LINES} more lines]"]


async def test_the_last_log_lines_of_a_failing_handler_are_passed_on(make_pool: Make) -> None:
    lines: list[str] = []
    pool = make_pool(on_output=lambda line, pid, job: lines.append(line))
    assert (await pool.run(make_job("logs_and_fails"))).kind is ResultKind.ERROR
    assert any("about to fail" in line for line in lines)
    assert any("ZeroDivisionError" in line for line in lines), "the traceback of log.exception"


# ---------------------------------------------------------------- alone


@pytest.mark.parametrize("handler", ["double", "async_double", "thread_double"])
@pytest.mark.slow
async def test_a_job_run_alone_has_a_process_of_its_own_whatever_its_mode(make_pool: Make, handler: str) -> None:
    pool = make_pool(fresh=True)
    ended = await pool.run_alone(make_job(handler, value=4))
    assert (ended.kind, ended.result) == (ResultKind.OK, b"8")
    await until(lambda: pool.pids == [] and pool.ended_processes == 1)


async def test_a_superseded_copy_on_its_way_out_does_not_meet_the_next_one(make_pool: Make) -> None:
    """The same id twice: neither is lost, and a cancellation reaches one of those that have not begun."""
    pool = make_pool(2)
    job = make_job("double", value=4)
    first, second = await asyncio.gather(pool.run_alone(job), pool.run_alone(job))
    assert (first.kind, second.kind) == (ResultKind.OK, ResultKind.OK)
    runs = [asyncio.ensure_future(pool.run_alone(job)) for _ in range(2)]
    await asyncio.sleep(0)
    runs[0].cancel()
    with pytest.raises(asyncio.CancelledError):
        await runs[0]
    assert (await runs[1]).kind is ResultKind.OK


async def test_jobs_run_alone_never_meet_in_a_process(make_pool: Make) -> None:
    pool = make_pool(2)
    shared = await value(pool, "pid")
    alone = await asyncio.gather(*(pool.run_alone(make_job("pid")) for _ in range(4)))
    assert len({shared, *(int(ended.result or 0) for ended in alone)}) == 5
    assert await value(pool, "pid") == shared


async def test_a_job_that_crashes_alone_is_the_one_that_is_recorded_as_crashed(make_pool: Make) -> None:
    pool = make_pool()
    assert (await pool.run_alone(make_job("segfault"))).kind is ResultKind.CRASHED
    assert (await pool.run_alone(make_job("double", value=2))).kind is ResultKind.OK


async def test_a_job_cancelled_while_its_own_process_starts_does_not_run(make_pool: Make, tmp_path: Path) -> None:
    pool = make_pool(fresh=True)
    job = make_job("hangs", started=str(tmp_path / "started"))
    run = asyncio.ensure_future(pool.run_alone(job))
    await until(lambda: len(pool.pids) == 1)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    await until(lambda: pool.pids == [])
    assert not (tmp_path / "started").exists()


# ---------------------------------------------------------------- workers that do not start


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module ``iso_scratch`` to be written by the test."""
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path / "iso_scratch.py"


GOOD_MODULE = "from tests.unit.agents.execute.process_pool.isolated_handlers import handlers\n"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import no_such_module_anywhere\n", "no_such_module_anywhere"),
        ("raise RuntimeError('broken on import')\n", "broken on import"),
        ("import os\nos._exit(9)\n", "exit code 9"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n", "SIGSEGV"),
    ],
)
@pytest.mark.slow
async def test_handlers_that_cannot_be_imported_are_one_clear_error_and_no_attempt(
    make_pool: Make, module: Path, source: str, message: str
) -> None:
    module.write_text(source)
    pool = make_pool(paths=("iso_scratch",))
    for run in (pool.run, pool.run_alone):
        ended = await run(make_job("double", value=1))
        assert ended.kind is ResultKind.NOT_STARTED
        assert ended.error is not None
        assert message in ended.error.message
    assert pool.pids == []


@pytest.mark.slow
async def test_a_module_that_hangs_on_import_is_given_up(make_pool: Make, module: Path) -> None:
    module.write_text("import time\nprint('still importing', flush=True)\ntime.sleep(3600)\n")
    pool = make_pool(limits=WorkerLimits(start_seconds=3.0), paths=("iso_scratch",))
    ended = await pool.run(make_job("double", value=1))
    assert ended.kind is ResultKind.NOT_STARTED
    assert ended.error is not None
    assert "within 3 s" in ended.error.message
    assert "still importing" in ended.error.traceback
    assert pool.pids == []


@pytest.mark.slow
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
    pool = make_pool(fresh=True)
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
    pid = int(await content_of(started))
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
    pool = make_pool(limits=QUICK, paths=("iso_scratch",), forks=False)
    runs = [asyncio.ensure_future(run(make_job("double", value=1))) for run in (pool.run, pool.run_alone)]
    await until(lambda: len(pool.pids) == 2)
    pids = pool.pids
    await pool.close()
    assert [(await run).kind for run in runs] == [ResultKind.NOT_STARTED] * 2
    assert not any(alive(pid) for pid in pids)


async def test_close_does_not_wait_out_the_pause_after_failed_starts(make_pool: Make, module: Path) -> None:
    module.write_text("raise RuntimeError('broken on import')\n")
    pool = make_pool(paths=("iso_scratch",))
    await pool.run(make_job("double", value=1))
    pool._not_before = pool._now() + 3600.0
    runs = [asyncio.ensure_future(run(make_job("double", value=1))) for run in (pool.run, pool.run_alone)]
    await asyncio.sleep(0)
    async with asyncio.timeout(PATIENCE_SECONDS):
        await pool.close()
        assert [(await run).kind for run in runs] == [ResultKind.NOT_STARTED] * 2


async def test_kill_all_ends_every_handler_now(make_pool: Make, tmp_path: Path) -> None:
    pool = make_pool(2, limits=NEVER_KILLED)
    files = [tmp_path / "shared", tmp_path / "alone"]
    runs: list[asyncio.Future[AttemptResult]] = [
        asyncio.ensure_future(run(make_job("swallows", started=str(file))))
        for run, file in zip((pool.run, pool.run_alone), files, strict=True)
    ]
    pids = [int(await content_of(file)) for file in files]
    pool.kill_all()
    assert [(await run).kind for run in runs] == [ResultKind.CRASHED] * 2
    assert not any(alive(pid) for pid in pids)


PARENT = """
import asyncio, logging, sys
sys.path[:] = {path!r}
from jobmaster.clock import SystemClock
from jobmaster_agents.execute.process_pool.pool import ProcessPool
from tests.unit.agents.execute.process_pool.process_pool_fixture import make_job
async def main():
    pool = ProcessPool([{module!r}], 1, result_bytes=1000, error_bytes=1000, logger=logging.getLogger(), clock=SystemClock())
    await pool.run(make_job({handler!r}, timeout=3600.0, started={started!r}))
asyncio.run(main())
"""


@pytest.mark.parametrize("handler", ["hangs_with_child", "holds_gil"])
async def test_a_worker_and_all_it_started_die_with_the_agent(tmp_path: Path, handler: str) -> None:
    started = tmp_path / "started"
    script = PARENT.format(path=sys.path, module=MODULE, handler=handler, started=str(started))
    parent = subprocess.Popen([sys.executable, "-c", script])
    try:
        worker, child = map(int, (await content_of(started)).split())
        assert alive(worker)
        assert alive(child)
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    await until(lambda: not alive(worker) and not alive(child))
