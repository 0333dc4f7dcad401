"""The driver of a Spark application as the child of a handler: started under a guard, reported, ended with the job.

The driver ends when the job is cancelled or timed out (SIGTERM, then SIGKILL), when the agent gives the job back, and when
the agent ends in any way, such as at the end of its lease (SIGKILL at once): ``guard``.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import tempfile
from asyncio.subprocess import PIPE, Process
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from jobmaster.model.errors import Unavailable
from jobmaster.pipeline.jobs.guard import CANNOT_START, NOT_STARTED
from jobmaster.pipeline.jobs.stages import DriverOutput, StageProgress

GRACE_SECONDS = 2.5
"""Between SIGTERM and SIGKILL, and for the processes of a driver that has ended. An agent that gives jobs back waits four."""
RESULT_VARIABLE = "JOB_RESULT_FILE"
"""Variable of the driver's environment: a file into which it may write JSON, the result of the application."""
_GUARD = Path(__file__).with_name("guard.py")
_TAIL_LINES = 20
_READ_BYTES = 64 * 1024
_LOOK_SECONDS, _LAST_LOOKS = 0.5, 10


class SparkFailed(Exception):
    """A Spark application ended with an error: its exit code, and the last lines of its output."""

    def __init__(self, what: str, exit_code: int, tail: Sequence[str]) -> None:
        super().__init__(f"{what} ended with exit code {exit_code}" + "".join(f"\n{line}" for line in tail))
        self.exit_code = exit_code
        self.tail = tuple(tail)


class Reports(Protocol):
    """Takes what a driver tells: the context of a job, or of several."""

    def progress(self, done: float, total: float | None = None, text: str = "") -> None: ...

    def log(self, text: str) -> None: ...


@dataclass
class DriverRun:
    """What a driver has done."""

    exit_code: int = 0
    stages: set[int] = field(default_factory=set)
    """Stages that were seen: those that took longer than half a second."""
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=_TAIL_LINES))
    """The last lines of its output."""
    result: Any = None
    """JSON that it has written into the file of ``RESULT_VARIABLE``."""


@contextmanager
def scratch_directory() -> Iterator[Path]:
    """A directory for the local files of one application: Spark's own stay behind when a JVM is killed."""
    # Spark spreads its files over several directories; what is in one of them is on a local disk.
    place = os.environ.get("SPARK_LOCAL_DIRS", "").partition(",")[0] or None
    with tempfile.TemporaryDirectory(prefix="jobmaster-spark-", dir=place, ignore_cleanup_errors=True) as made:
        yield Path(made)


async def run_driver(
    reports: Reports, argv: Sequence[str], scratch: Path, *, environment: Mapping[str, str], given: str = ""
) -> DriverRun:
    """Run a driver to its end. Its lines go to ``reports.log``, the progress of its stages to
    ``reports.progress``.

    Args:
        scratch: directory for its files.
        environment: added to that of the agent.
        given: its standard input.

    Raises:
        asyncio.CancelledError: the job is stopped. The driver and all its processes have ended.
        Unavailable: the process cannot be started.
    """
    result = scratch / "result.json"
    own = {**os.environ, "SPARK_LOCAL_DIRS": str(scratch), **environment, RESULT_VARIABLE: str(result)}
    order = json.dumps({"argv": list(argv), "input": given, "scratch": str(scratch), "grace": GRACE_SECONDS}).encode()
    try:
        guard = await asyncio.create_subprocess_exec(
            sys.executable,
            "-I",
            "-S",
            str(_GUARD),
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            env=own,
            start_new_session=True,
        )
    except OSError as error:
        raise Unavailable(f"no process can be started for a Spark application: {error}") from error
    run = DriverRun()
    whole = asyncio.create_task(_to_the_end(guard, order, reports, run), name="jobmaster-spark-driver")
    try:
        await asyncio.shield(whole)
    finally:
        if not whole.done():
            await _stop(guard, whole)
    if run.exit_code == NOT_STARTED and run.tail and run.tail[-1].startswith(CANNOT_START):
        raise Unavailable(run.tail[-1])
    if result.exists():
        try:
            run.result = json.loads(result.read_bytes())
        except ValueError as error:
            raise SparkFailed(f"{argv[-1]} has written no JSON ({error}) and", run.exit_code, run.tail) from error
    return run


async def _to_the_end(guard: Process, order: bytes, reports: Reports, run: DriverRun) -> None:
    assert guard.stdin is not None
    assert guard.stdout is not None
    assert guard.stderr is not None
    try:
        guard.stdin.write(b"%08d" % len(order) + order)
        await guard.stdin.drain()
    except (BrokenPipeError, ConnectionResetError):
        pass  # its exit code tells
    reads = asyncio.gather(_read(guard.stdout, reports, run), _read(guard.stderr, reports, run))
    try:
        looks = _LAST_LOOKS
        while not (await asyncio.wait([reads], timeout=_LOOK_SECONDS))[0] and looks:
            if guard.returncode is not None:  # it was killed, and what it has started holds the pipes
                _signal(lambda: os.killpg(guard.pid, signal.SIGKILL))
                looks -= 1
        if reads.done():
            reads.result()
    finally:
        reads.cancel()
    code = await guard.wait()
    run.exit_code = 128 - code if code < 0 else code
    guard.stdin.close()


async def _read(stream: asyncio.StreamReader, reports: Reports, run: DriverRun) -> None:
    output = DriverOutput()
    while part := await stream.read(_READ_BYTES):
        _note(output.feed(part.decode(errors="replace")), reports, run)
    _note(output.end(), reports, run)


def _note(found: tuple[StageProgress | None, list[str]], reports: Reports, run: DriverRun) -> None:
    progress, lines = found
    if progress is not None and progress.tasks:
        run.stages.update(progress.stages)
        reports.progress(progress.done, progress.tasks, progress.text)
    for line in lines:
        run.tail.append(line)
        reports.log(line)


async def _stop(guard: Process, whole: asyncio.Task[None]) -> None:
    """End the driver, and wait for that. Further cancellations do not interrupt it; an agent gives up a handler that takes
    too long, and the guard goes on."""
    _signal(guard.terminate)
    while not whole.done():
        try:
            await asyncio.wait([whole])
        except asyncio.CancelledError:
            continue  # the agent repeats it every two seconds


def _signal(send: Any) -> None:
    try:
        send()
    except ProcessLookupError:
        pass  # it has ended
