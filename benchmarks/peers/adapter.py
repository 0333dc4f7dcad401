"""The frame of a peer's adapter: ``setup``, ``enqueue WAY JOBS CALLERS`` or ``work``, called by the driver as a process.

Only the standard library: this runs inside the peers' environments. WAY is ``single`` (each call awaited before the next),
``concurrent`` (CALLERS callers at once) or ``bulk`` (the peer's own call for many, 1,000 at a time).
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

DSN = os.environ.get("BENCH_DSN", "")
REDIS = os.environ.get("BENCH_REDIS", "")
BULK = 1000
TEXT = "x" * 89


async def spread(call: Callable[[], Awaitable[Any]], jobs: int, callers: int) -> float:
    """Seconds of so many calls by so many coroutines."""

    async def caller() -> None:
        for _ in range(jobs // callers):
            await call()

    began = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(callers)))
    return time.perf_counter() - began


def spread_threads(call: Callable[[], Any], jobs: int, callers: int) -> float:
    """Seconds of so many calls by so many threads, for systems that have no asynchronous call."""

    def caller() -> None:
        for _ in range(jobs // callers):
            call()

    call()
    with ThreadPoolExecutor(callers) as pool:
        began = time.perf_counter()
        for done in [pool.submit(caller) for _ in range(callers)]:
            done.result()
        return time.perf_counter() - began


async def in_bulk(call: Callable[[int], Awaitable[Any]], jobs: int) -> float:
    """Seconds of calls with ``BULK`` jobs each."""
    began = time.perf_counter()
    for start in range(0, jobs, BULK):
        await call(min(BULK, jobs - start))
    return time.perf_counter() - began


def become(arguments: list[str]) -> None:
    """Turn this process into a Python command of the peer."""
    os.execv(sys.executable, [sys.executable, *arguments])  # noqa: S606


def main(
    enqueue: Callable[[str, int, int], float], work: Callable[[], None], setup: Callable[[], None] = lambda: None
) -> None:
    """Execute the command line; ``enqueue`` returns seconds."""
    what, *rest = sys.argv[1:]
    if what == "setup":
        setup()
    elif what == "work":
        work()
    else:
        way, jobs, callers = rest[0], int(rest[1]), int(rest[2])
        made = jobs // callers * callers if way == "concurrent" else jobs
        seconds = enqueue(way, jobs, callers)
        print(json.dumps({"jobs": made, "seconds": seconds}))
