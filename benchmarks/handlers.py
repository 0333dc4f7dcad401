"""What the measurements run."""

from __future__ import annotations

import asyncio
import time

from jobmaster.handlers import Handlers

handlers = Handlers()


@handlers.job(name="bench.noop")
async def noop(text: str = "") -> None:
    return None


@handlers.job(name="bench.millisecond")
async def millisecond(text: str = "") -> None:
    await asyncio.sleep(0.001)


@handlers.job(name="bench.stamp")
async def stamp(sent_us: int) -> int:
    """Microseconds from submit to start, on one machine's clock."""
    return time.time_ns() // 1000 - sent_us


@handlers.job(name="bench.sleep")
async def sleep(seconds: float) -> None:
    await asyncio.sleep(seconds)
