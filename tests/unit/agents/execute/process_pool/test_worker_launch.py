"""Worker processes that are forked, and those that are not, because a fork would not be as good. Real processes."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from pathlib import Path

import pytest

from jobmaster_agents.execute.attempt_result import AttemptResult, ResultKind
from tests.support.processes import alive
from tests.support.waiting import until
from tests.unit.agents.execute.process_pool.process_pool_fixture import (
    NEVER_KILLED,
    Make,
    content_of,
    make_job,
    value,
)

GOOD_MODULE = "from tests.unit.agents.execute.process_pool.isolated_handlers import handlers\n"
COUNTED = """
import os
with open({path!r}, "a") as imports:
    imports.write("x")
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module ``iso_scratch`` to be written by the test."""
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path / "iso_scratch.py"


@pytest.fixture
def imports(tmp_path: Path, module: Path) -> Path:
    """The module has the handlers of all tests; a letter for each of its imports is written into this file."""
    path = tmp_path / "imports"
    module.write_text(GOOD_MODULE + COUNTED.format(path=str(path)))
    return path


async def test_workers_are_forks_of_one_process_that_has_imported_the_handlers(make_pool: Make, imports: Path) -> None:
    pool = make_pool(2, paths=("iso_scratch",))
    first = await value(pool, "parent")
    assert (await pool.run(make_job("segfault"))).kind is ResultKind.CRASHED
    assert await value(pool, "parent") == first != os.getpid()
    assert imports.read_text() == "x"
    await pool.close()
    assert not alive(first)


async def test_each_fork_draws_numbers_and_ids_of_its_own(make_pool: Make, module: Path) -> None:
    module.write_text(GOOD_MODULE + "import random\nfrom jobmaster.clock import new_id\nrandom.random()\nnew_id()\n")
    pool = make_pool(paths=("iso_scratch",))
    drawn = []
    for _ in range(2):
        drawn.append(await value(pool, "draws"))
        await pool.run(make_job("segfault"))
    (number, suffix), (other_number, other_suffix) = drawn
    assert number != other_number
    assert suffix != other_suffix


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n", "1 thread(s)"),
        ("import socket\nkept = socket.socketpair()\n", "2 descriptor(s)"),
        ("import os\nif not os.fork():\n    import time\n    time.sleep(3600)\n", "processes"),
        ("import signal\nsignal.setitimer(signal.ITIMER_PROF, 3600)\n", "a timer"),
        ("import sys, types\nsys.modules['numpy.random'] = types.ModuleType('numpy.random')\n", "numpy.random"),
    ],
    ids=["thread", "sockets", "child", "timer", "numpy"],
)
@pytest.mark.slow
async def test_what_an_import_has_left_makes_every_worker_a_new_interpreter(
    make_pool: Make, module: Path, imports: Path, caplog: pytest.LogCaptureFixture, source: str, reason: str
) -> None:
    module.write_text(module.read_text() + source)
    pool = make_pool(paths=("iso_scratch",))
    with caplog.at_level(logging.INFO):
        assert await value(pool, "parent") == os.getpid()
    (line,) = [record.message for record in caplog.records if "new interpreters" in record.message]
    assert reason in line
    assert (await pool.run(make_job("segfault"))).kind is ResultKind.CRASHED
    assert await value(pool, "parent") == os.getpid()
    assert imports.read_text() == "xxx", "once in the fork server, once in each worker"


async def test_without_forks_every_worker_is_a_child_of_the_agent(make_pool: Make) -> None:
    pool = make_pool(fresh=True, forks=False)
    assert await value(pool, "parent") == os.getpid()


async def test_a_job_goes_on_when_the_fork_server_is_killed(
    make_pool: Make, imports: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pool = make_pool(2, paths=("iso_scratch",), limits=NEVER_KILLED)
    server = await value(pool, "parent")
    started, go = tmp_path / "started", tmp_path / "go"
    run: asyncio.Future[AttemptResult] = asyncio.ensure_future(
        pool.run(make_job("waits", started=str(started), go_on=str(go)))
    )
    worker = int(await content_of(started))
    os.kill(server, signal.SIGKILL)
    await until(lambda: not alive(server))
    other = await value(pool, "parent")
    assert other not in (server, worker)
    go.write_text("")
    assert (await run).kind is ResultKind.OK
    os.kill(worker, signal.SIGKILL)
    await until(lambda: worker not in pool.pids)
    assert "its exit code is not known" in caplog.text


async def test_a_crash_of_a_forked_worker_is_named_and_takes_its_children_along(
    make_pool: Make, tmp_path: Path
) -> None:
    pool = make_pool(limits=NEVER_KILLED)
    started = tmp_path / "started"
    run: asyncio.Future[AttemptResult] = asyncio.ensure_future(
        pool.run(make_job("hangs_with_child", started=str(started)))
    )
    worker, child = map(int, (await content_of(started)).split())
    os.kill(worker, signal.SIGSEGV)
    ended = await run
    assert ended.kind is ResultKind.CRASHED
    assert ended.error is not None
    assert "was killed by SIGSEGV" in ended.error.message
    await until(lambda: not alive(child))


@pytest.mark.slow
async def test_a_fork_server_whose_import_failed_is_tried_again_later(
    make_pool: Make, module: Path, imports: Path
) -> None:
    good = module.read_text()
    module.write_text("raise RuntimeError('a server that it needs is away')\n")
    pool = make_pool(paths=("iso_scratch",))
    assert (await pool.run(make_job("parent"))).kind is ResultKind.NOT_STARTED
    module.write_text(good)
    assert await value(pool, "parent") == os.getpid(), "not at once"
    pool._launcher._not_before = 0.0
    assert (await pool.run(make_job("segfault"))).kind is ResultKind.CRASHED
    assert await value(pool, "parent") != os.getpid()


async def test_the_end_of_a_pool_does_not_wait_for_the_import_in_its_fork_server(
    make_pool: Make, module: Path, tmp_path: Path
) -> None:
    path = tmp_path / "importing"
    module.write_text(f"import os, time\nopen({str(path)!r}, 'w').write(str(os.getpid()))\ntime.sleep(3600)\n")
    pool = make_pool(paths=("iso_scratch",), limits=NEVER_KILLED)
    runs = [asyncio.ensure_future(run(make_job("parent"))) for run in (pool.run, pool.run_alone)]
    await until(lambda: path.exists() and path.read_text())
    await pool.close()
    assert [(await run).kind for run in runs] == [ResultKind.NOT_STARTED] * 2
    assert path.read_text(), "one import"
    assert not alive(int(path.read_text()))
