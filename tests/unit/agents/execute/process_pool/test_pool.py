"""Handlers in worker processes, really killed: a handler that misbehaves fails its own attempt and no other job."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jobmaster_agents.execute.attempt_result import ResultKind
from tests.support.patience import PATIENCE_SECONDS
from tests.support.processes import alive
from tests.support.waiting import until
from tests.unit.agents.execute.process_pool.process_pool_fixture import (
    ERROR_BYTES,
    RESULT_BYTES,
    Make,
    content_of,
    make_job,
    value,
)

# ---------------------------------------------------------------- the ordinary


async def test_handlers_of_every_mode_run_and_workers_start_when_needed(make_pool: Make) -> None:
    pool = make_pool(2, fresh=True)
    assert pool.pids == []
    assert await value(pool, "double", value=21) == 42
    assert await value(pool, "async_double", value=21) == 42
    assert await value(pool, "thread_double", value=21) == 42
    assert await value(pool, "nothing") is None
    assert await value(pool, "pid") in pool.pids
    assert len(pool.pids) == 1
    assert os.getpid() not in pool.pids


async def test_the_context_holds_the_identity_of_its_run(make_pool: Make) -> None:
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
    jobs = [make_job("waits", started=str(tmp_path / f"{n}"), go_on=go_on) for n in range(3)]
    runs = [asyncio.ensure_future(pool.run(job)) for job in jobs]
    await until(lambda: sum((tmp_path / f"{n}").exists() for n in range(3)) == 2)
    assert not any(run.done() for run in runs)
    await until(lambda: sum(pool.running(job) is not None for job in jobs) == 2)
    Path(go_on).touch()
    results = await asyncio.gather(*runs)
    assert [result.kind for result in results] == [ResultKind.OK] * 3
    assert len({result.result for result in results}) == 2
    assert not any(pool.running(job) for job in jobs)


async def test_a_worker_inherits_the_environment_and_no_descriptors(
    make_pool: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ISO_INHERITED", "yes")
    monkeypatch.setenv("PYTHONPATH", "/as/it/was")
    pool = make_pool(fresh=True)
    with (tmp_path / "held").open("w") as held:
        os.set_inheritable(held.fileno(), True)
        assert await value(pool, "open_files", inode=os.fstat(held.fileno()).st_ino) is False
    assert await value(pool, "environment", name="ISO_INHERITED") == "yes"
    assert await value(pool, "environment", name="PYTHONPATH") == "/as/it/was"
    monkeypatch.delenv("PYTHONPATH")
    assert await value(make_pool(fresh=True), "environment", name="PYTHONPATH") is None


ON_UVLOOP = """
import os, sys, uvloop
sys.path[:] = {path!r}
from tests.unit.agents.execute.process_pool.process_pool_fixture import pools, value
async def main():
    held = os.open({held!r}, os.O_RDONLY)
    os.set_inheritable(held, True)
    async with pools() as make_pool:
        assert await value(make_pool(), "open_files", inode=os.fstat(held).st_ino) is False
uvloop.run(main())
"""


def test_a_worker_inherits_no_descriptors_from_an_agent_on_uvloop(tmp_path: Path) -> None:
    pytest.importorskip("uvloop")
    held = tmp_path / "held"
    held.touch()
    script = ON_UVLOOP.format(path=sys.path, held=str(held))
    ended = subprocess.run([sys.executable, "-c", script], stderr=subprocess.PIPE, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


# ---------------------------------------------------------------- raising, and results that cannot be sent


async def test_what_a_handler_raises_is_reported_with_its_place(make_pool: Make) -> None:
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
    assert (retry.kind, retry.after_seconds) == (ResultKind.RETRY, 12.5)
    cancel = await pool.run(make_job("cancel"))
    assert cancel.kind is ResultKind.CANCEL
    assert cancel.error is not None
    assert cancel.error.message == "pointless"


@pytest.mark.parametrize(
    ("args", "kind", "reason", "after", "problem"),
    [
        ({"text": "x"}, ResultKind.FAIL, "given_up", None, ""),
        ({"text": "x", "type_": "OSError"}, ResultKind.ERROR, "error", None, ""),
        ({"text": "policy says no", "type_": "OSError"}, ResultKind.FAIL, "given_up", None, ""),
        ({"text": "policy says later"}, ResultKind.ERROR, "error", 200.0, ""),
        ({"text": "policy breaks"}, ResultKind.FAIL, "given_up", None, "it raised SystemExit: 5"),
    ],
)
async def test_the_rules_of_a_handler_are_asked_in_its_worker(
    make_pool: Make, args: dict[str, Any], kind: ResultKind, reason: str, after: float | None, problem: str
) -> None:
    ended = await make_pool().run(make_job("ruled", **args))
    assert ended.error is not None
    assert (ended.kind, ended.error.reason, ended.after_seconds, ended.policy_problem) == (kind, reason, after, problem)


async def test_a_handler_in_a_worker_decides_and_sees_how_long_it_runs(make_pool: Make) -> None:
    pool = make_pool()
    snooze, fail = await pool.run(make_job("snooze")), await pool.run(make_job("fail"))
    assert snooze.error is not None
    assert (snooze.kind, snooze.after_seconds, snooze.error.reason) == (ResultKind.SNOOZE, 12.5, "snoozed")
    assert fail.error is not None
    assert (fail.kind, fail.error.message, fail.error.reason) == (ResultKind.FAIL, "never", "failed")
    assert (await pool.run(make_job("ruled_async"))).kind is ResultKind.FAIL
    assert await value(pool, "warned") == [0.001, 0]


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
    ("handler", "args", "message"),
    [
        ("nan", {}, "nan"),
        ("unencodable", {}, "cannot be encoded"),
        ("huge", {"size": RESULT_BYTES}, str(RESULT_BYTES)),
        ("huge", {"size": 50_000_000}, str(RESULT_BYTES)),
    ],
)
async def test_a_result_that_cannot_be_recorded_is_an_error_of_the_result(
    make_pool: Make, handler: str, args: dict[str, Any], message: str
) -> None:
    pool = make_pool()
    ended = await pool.run(make_job(handler, **args))
    assert ended.kind is ResultKind.ERROR
    assert ended.error is not None
    assert ended.error.reason == "result"
    assert message in ended.error.message
    assert pool.ended_processes == 0


async def test_a_huge_error_text_is_cut(make_pool: Make) -> None:
    ended = await make_pool().run(make_job("huge_error", size=50_000_000))
    assert ended.kind is ResultKind.ERROR
    assert ended.error is not None
    assert ended.error.truncated
    assert len(msgspec.json.encode(ended.error)) <= ERROR_BYTES


# ---------------------------------------------------------------- dying


@pytest.mark.parametrize(
    ("handler", "args", "message"),
    [
        ("sys_exit", {"code": 3}, "sys.exit(3)"),
        ("os_exit", {"code": 0}, "exit code 0"),
        ("os_exit", {"code": 7}, "exit code 7"),
        ("segfault", {}, "SIGSEGV"),
        ("kill_self", {}, "SIGKILL"),
        ("close_everything", {}, "SIGKILL"),
        ("garbage", {}, "SIGKILL"),
        ("ready_out_of_turn", {}, "SIGKILL"),
    ],
)
async def test_a_handler_that_ends_its_process_hurts_only_its_own_attempt(
    make_pool: Make, tmp_path: Path, handler: str, args: dict[str, Any], message: str
) -> None:
    pool = make_pool(2)
    started, go_on = tmp_path / "started", tmp_path / "go"
    neighbour = asyncio.ensure_future(pool.run(make_job("waits", started=str(started), go_on=str(go_on))))
    await content_of(started)
    ended = await pool.run(make_job(handler, **args))
    assert ended.kind is ResultKind.CRASHED
    assert ended.error is not None
    assert ended.error.reason == "crashed"
    assert message in ended.error.message
    assert not neighbour.done()
    assert await value(pool, "double", value=2) == 4
    go_on.touch()
    assert (await neighbour).kind is ResultKind.OK


async def test_the_exit_code_of_a_killed_worker_is_left_to_the_event_loop(
    make_pool: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some event loops wait for it in a thread, which may come late."""
    killed, wait_for, kill_group = threading.Event(), os.waitpid, os.killpg

    def wait_late(pid: int, options: int) -> tuple[int, int]:
        if not options:
            killed.wait(PATIENCE_SECONDS)
        return wait_for(pid, options)

    def kill_and_see(group: int, number: int) -> None:
        kill_group(group, number)
        while alive(group):
            pass

    monkeypatch.setattr(os, "waitpid", wait_late)
    monkeypatch.setattr(os, "killpg", kill_and_see)
    pool, started = make_pool(fresh=True), tmp_path / "started"
    run = asyncio.ensure_future(pool.run(make_job("waits", started=str(started), go_on=str(tmp_path / "go"))))
    await content_of(started)
    pool.kill_all()
    killed.set()
    error = (await run).error
    assert error is not None
    assert "was killed by SIGKILL" in error.message


async def test_the_last_output_is_kept_with_a_crash(make_pool: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    pool = make_pool(fresh=True)
    await value(pool, "prints", text="of the job before")
    ended = await pool.run(make_job("os_exit", code=1))
    assert ended.error is not None
    assert "last words" in ended.error.traceback
    assert "of the job before" not in ended.error.traceback
    ended = await pool.run(make_job("segfault"))
    assert ended.error is not None
    assert "Segmentation fault" in ended.error.traceback
    assert "in segfault" in ended.error.traceback


async def test_what_a_dying_handler_has_started_ends_with_it(make_pool: Make, tmp_path: Path) -> None:
    pool = make_pool()
    started = tmp_path / "started"
    assert (await pool.run(make_job("dies_with_child", started=str(started)))).kind is ResultKind.CRASHED
    child = int(started.read_text())
    await until(lambda: not alive(child))


async def test_a_fork_that_returns_from_the_handler_does_not_end_the_job(make_pool: Make, tmp_path: Path) -> None:
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
    assert pool._free == []
    assert await value(pool, "pid") != victim
