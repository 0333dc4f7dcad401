"""What the measurements run."""

from __future__ import annotations

import time

from jobmaster.handlers import Handlers

handlers = Handlers()


@handlers.job(name="bench.noop")
async def noop() -> None:
    return None


@handlers.job(name="bench.payload")
async def payload(text: str) -> None:
    return None


@handlers.job(name="bench.stamp")
async def stamp(sent_us: int) -> int:
    """Microseconds from submit to start, on one machine's clock."""
    return time.time_ns() // 1000 - sent_us
