"""Handlers of jobs that are late. What they did is written to files, independent of both stores."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

from jobmaster.handlers import Handlers, JobContext
from tests.system.jobs import witness

handlers = Handlers()


async def opened(gate: str) -> None:
    while not Path(gate).exists():  # noqa: ASYNC110 - the gate is a file, so that other processes can open it
        await asyncio.sleep(0.02)


@handlers.job(name="blocks", timeout=300)
async def blocks(ctx: JobContext, path: str, gate: str) -> None:
    witness(ctx, path, "blocks")
    await opened(gate)


@handlers.job(name="late", timeout=300, max_attempts=2, backoff=0.01)
async def late(ctx: JobContext, path: str, gate: str, failure: str) -> str:
    """In its first run it does what ``failure`` names; every later run succeeds at once."""
    first = not Path(path).exists() or ctx.job_id.hex not in Path(path).read_text()
    witness(ctx, path, "began")
    if first and failure == "raises":
        raise RuntimeError("as asked")
    if first and failure == "slow":
        await opened(gate)
    if first and failure == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    return "first" if first else "later"


@handlers.job(name="hurried", accept_time=1.0)
async def hurried(ctx: JobContext, path: str) -> None:
    witness(ctx, path, "hurried")


@handlers.job(name="hurried_work", accept_time=0.5, timeout=60)
async def hurried_work() -> None:
    await asyncio.sleep(0.2)


@handlers.job(name="stoppable", timeout=300, complete_time=5, cancel_slow=True)
async def stoppable(ctx: JobContext, path: str) -> str:
    if ctx.token > 2:
        return "later"
    witness(ctx, path, "began")
    try:
        await asyncio.sleep(200)
    except asyncio.CancelledError:
        witness(ctx, path, "stopped")
        raise
    return "first"
