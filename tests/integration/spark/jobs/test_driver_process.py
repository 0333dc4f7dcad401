"""A driver and all of its processes end with the job, with the guard and with the agent. The drivers are small programs."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from jobmaster.model.errors import Unavailable
from jobmaster.pipeline.jobs.driver_process import DriverRun, SparkFailed, run_driver
from jobmaster.testing import job_context
from tests.support.patience import PATIENCE_SECONDS
from tests.support.processes import processes_with
from tests.support.waiting import eventually, wait_until

REPOSITORY = Path(__file__).parents[4]
MARK = "JM_DRIVER_MARK"
FAMILY = """
import os, signal, subprocess, sys
# A child that ignores SIGTERM in a session of its own, and one whose parent has ended.
child = "import signal, threading; signal.signal(15, signal.SIG_IGN); print('child', flush=True); threading.Event().wait()"
subprocess.Popen([sys.executable, "-c", child], start_new_session=True)
orphan = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', sys.argv[1]], start_new_session=True)"
subprocess.run([sys.executable, "-c", orphan, child])
print("ready", flush=True)
signal.pause()
"""


class Marked:
    """A context of a job, and the processes of its driver, found by a variable of their environment."""

    def __init__(self) -> None:
        self.mark = uuid4().hex
        self.context = job_context()
        self.run: DriverRun | None = None

    async def start(self, program: str, scratch: Path) -> DriverRun:
        argv = [sys.executable, "-c", textwrap.dedent(program)]
        return await run_driver(self.context, argv, scratch, environment={MARK: self.mark})

    def processes(self) -> dict[int, str]:
        """Process ids with their command lines."""
        return processes_with(MARK, self.mark)

    async def counted(self, count: int) -> None:
        """So many of them run."""

        async def reached() -> bool:
            return len(self.processes()) == count

        await eventually(reached, PATIENCE_SECONDS, lambda: f"{count} processes, not {self.processes()}")

    def guard(self) -> int | None:
        return next((pid for pid, command in self.processes().items() if "guard.py" in command), None)


@pytest.fixture
def marked() -> Iterator[Marked]:
    made = Marked()
    yield made
    for pid in made.processes():  # only a test that fails leaves some
        os.kill(pid, signal.SIGKILL)


async def test_lines_progress_result_and_exit_code_come_back(marked: Marked, tmp_path: Path) -> None:
    program = """
        import os, sys
        print("to standard output")
        sys.stderr.write("\\r[Stage 2:==>   (3 + 1) / 10]\\r")
        open(os.environ["JOB_RESULT_FILE"], "w").write('{"rows": 7}')
        print(sys.stdin.read() or "no input", os.environ["SPARK_LOCAL_DIRS"])
        sys.exit(3)
    """
    run = await marked.start(program, tmp_path)
    lines = list(run.tail)
    assert (run.exit_code, run.result, run.stages) == (3, {"rows": 7}, {2})
    assert "to standard output" in lines
    assert f"no input {tmp_path}" in lines
    progress = marked.context.last_progress
    assert progress is not None
    assert (progress.done, progress.total, progress.text) == (3, 10, "stage 2")
    assert not marked.processes()


@pytest.mark.slow
async def test_a_cancelled_job_ends_the_driver_and_everything_below_it(marked: Marked, tmp_path: Path) -> None:
    running = asyncio.create_task(marked.start(FAMILY, tmp_path))
    await marked.counted(4)  # guard, driver, child and orphan
    running.cancel()
    await asyncio.wait([running], timeout=0.1)
    running.cancel()  # as the agent repeats it
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not marked.processes()


async def test_a_guard_that_is_killed_takes_the_driver_along(marked: Marked, tmp_path: Path) -> None:
    running = asyncio.create_task(marked.start("import signal; print('ready', flush=True); signal.pause()", tmp_path))
    await marked.counted(2)
    guard = marked.guard()
    assert guard is not None
    os.kill(guard, signal.SIGKILL)
    assert (await running).exit_code == 128 + 9
    await marked.counted(0)


def test_an_agent_that_is_killed_leaves_nothing_of_the_driver(marked: Marked, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    program = f"""
        import asyncio, os, pathlib
        from tests.integration.spark.jobs.test_driver_process import FAMILY, Marked
        marked = Marked()
        marked.mark = {marked.mark!r}
        asyncio.run(marked.start(FAMILY, pathlib.Path({str(scratch)!r})))
    """
    path = os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "agents")])
    agent = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)], env={**os.environ, "PYTHONPATH": path}, cwd=REPOSITORY
    )
    try:
        wait_until(lambda: agent.poll() is not None or len(marked.processes()) == 4, PATIENCE_SECONDS, "the family")
        assert agent.poll() is None
    finally:
        agent.kill()
        agent.wait()
    wait_until(lambda: not marked.processes(), PATIENCE_SECONDS, lambda: f"the end of {marked.processes()}")
    assert not scratch.exists(), "the local files of Spark"


async def test_a_driver_that_cannot_start_and_one_that_writes_no_json_are_named(marked: Marked, tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=r"cannot be started: .*no-such-program"):
        await run_driver(marked.context, ["/no-such-program"], tmp_path, environment={})
    with pytest.raises(SparkFailed, match="has written no JSON"):
        await marked.start("import os; open(os.environ['JOB_RESULT_FILE'], 'w').write('7 of')", tmp_path)
