"""The handlers of the measurements."""

from __future__ import annotations

import asyncio
import os
import time

from jobmaster.handlers import Handlers, JobContext

handlers = Handlers()


@handlers.job(name="bench.noop")
async def noop(text: str = "") -> None:
    return None


@handlers.job(name="bench.echo")
async def echo(text: str = "") -> str:
    """A result as large as the argument."""
    return text


@handlers.job(name="bench.millisecond")
async def millisecond(text: str = "") -> None:
    await asyncio.sleep(0.001)


@handlers.job(name="bench.stamp")
async def stamp(sent_us: int) -> int:
    """Microseconds from submit to start, on one machine's clock."""
    return time.time_ns() // 1000 - sent_us


@handlers.job(name="bench.stamp_and_sleep")
async def stamp_and_sleep(sent_us: int, seconds: float) -> int:
    """``stamp`` of a job that keeps its slot for a while."""
    waited_us = time.time_ns() // 1000 - sent_us
    await asyncio.sleep(seconds)
    return waited_us


@handlers.job(name="bench.sleep")
async def sleep(seconds: float) -> None:
    await asyncio.sleep(seconds)


@handlers.job(name="bench.until_gate")
async def until_gate(ctx: JobContext, path: str, gate: str) -> None:
    """One line at every start, then waits for a file: what a killed process was running is known to the last job."""
    line = f"{ctx.job_id.hex} {os.getpid()} {time.monotonic_ns()}\n"
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, line.encode())
    os.close(fd)
    while not os.path.exists(gate):  # noqa: ASYNC110 - the gate is a file, so that other processes can open it
        await asyncio.sleep(0.02)
