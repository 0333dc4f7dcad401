"""Handlers that both versions of the fleet have. Each run is noted with the version of its agent."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from jobmaster import Handlers, JobContext

handlers = Handlers()
FOLDER = Path(os.environ.get("UPGRADE_FOLDER", "."))
VERSION = os.environ.get("UPGRADE_VERSION", "none")


def note(ctx: JobContext, word: str) -> None:
    """One line, appended at once: version of the agent, handler, job."""
    line = f"{VERSION} {word} {ctx.job_id}\n"
    fd = os.open(FOLDER / f"runs-{os.getpid()}", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(fd, line.encode())
    os.close(fd)


@handlers.job(name="fleet.quick")
async def quick(ctx: JobContext, number: int) -> int:
    note(ctx, "quick")
    return number


@handlers.job(name="fleet.slow")
async def slow(ctx: JobContext, number: int) -> int:
    note(ctx, "slow")
    await asyncio.sleep(0.3)
    return number


@handlers.job(name="fleet.fenced", start="fenced")
async def fenced(ctx: JobContext, number: int) -> int:
    note(ctx, "fenced")
    return number


@handlers.job(name="fleet.flaky", max_attempts=3)
async def flaky(ctx: JobContext, number: int) -> int:
    note(ctx, "flaky")
    if ctx.attempt == 1:
        raise ValueError("the first attempt fails")
    return number
