"""The frame of a peer's adapter: ``setup``, ``enqueue WAY JOBS CALLERS`` or ``work``, called by the driver as a process.

Only the standard library: this runs inside the peers' environments. WAY is ``single`` (each call awaited before the next),
``concurrent`` (CALLERS callers at once) or ``bulk`` (the peer's own call for many, 1,000 at a time). The environment has the
kind of work (``BENCH_KIND``) and, for jobs at even distances, seconds between two calls (``BENCH_PACE``).

Kinds are those of ``benchmarks.support.plain_work``, and: ``fail_1`` and ``retry_5``, whose argument begins with a number
below 100; ``context``, a job that is given its context, and ``tags``, a job that carries two; ``stamp``, whose argument is
the moment of its submit; ``hold``, which runs until the file ``gate`` exists.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from benchmarks.peers.job_counter import GATE, JobCounter, record_start
from benchmarks.support.plain_work import FAIL_PERCENT, PLAIN, RETRY_PERCENT, WAIT_SECONDS, text_of

DSN = os.environ.get("BENCH_DSN", "")
REDIS = os.environ.get("BENCH_REDIS", "")
KIND = os.environ.get("BENCH_KIND", "noop")
POOL = os.environ.get("BENCH_POOL", "")
"""Of an adapter that several peers share: how its workers run jobs."""
QUEUE = f"bench-{POOL}"
BULK = 1000
ATTEMPTS: int | None = {"fail_1": 1, "retry_5": 2}.get(KIND)
"""How often a job may run; ``None``: what is usual in the system."""
_PACE = float(os.environ.get("BENCH_PACE", "0"))
_GATE_SECONDS = 0.02
_TEXT = text_of(KIND)
_numbers = itertools.count()
_counter = JobCounter()
_work = PLAIN.get(KIND, PLAIN["noop"])


class Failed(Exception):
    """Raised by the jobs that are to fail."""


class Again(Exception):
    """Raised by the first attempt of the jobs that are to be retried."""


# ---------------------------------------------------------------- jobs


def text() -> str:
    """The argument of the next job."""
    if KIND in ("stamp", "hold"):
        return str(time.time_ns() // 1000)
    if KIND in ("fail_1", "retry_5"):
        return f"{next(_numbers) % 100:02d}{_TEXT}"
    return _TEXT


def run(text: str, attempt: int = 1) -> str | None:
    """The job, in a thread or a process; ``attempt`` counts from 1."""
    _begin(text, attempt)
    if KIND == "hold":
        while not _open():
            time.sleep(_GATE_SECONDS)
    result = _work(text)
    _end(text)
    return result


async def run_async(text: str, attempt: int = 1) -> str | None:
    """The job, on an event loop."""
    if KIND == "wait_10ms":
        _begin(text, attempt)
        await asyncio.sleep(WAIT_SECONDS)
        _end(text)
        return None
    if KIND == "hold":
        _begin(text, attempt)
        while not _open():  # noqa: ASYNC110 - the gate is a file
            await asyncio.sleep(_GATE_SECONDS)
        _end(text)
        return None
    return run(text, attempt)


def _begin(text: str, attempt: int) -> None:
    _counter.begin()
    if KIND in ("stamp", "hold"):
        record_start(text)
    elif KIND == "retry_5" and attempt == 1 and int(text[:2]) < RETRY_PERCENT:
        raise Again


def _end(text: str) -> None:
    _counter.hit()
    if KIND == "fail_1" and int(text[:2]) < FAIL_PERCENT:
        raise Failed


def _open() -> bool:
    return os.path.exists(os.path.join(os.environ["BENCH_MARKS"], GATE))


def at_once(usual: int, waiting: int = 100) -> int:
    """Threads or slots: more for jobs that only wait."""
    return waiting if KIND == "wait_10ms" else usual


# ---------------------------------------------------------------- submits


async def spread(call: Callable[[], Awaitable[Any]], jobs: int, callers: int) -> float:
    """Seconds of so many calls by so many coroutines."""

    async def caller() -> None:
        for _ in range(jobs // callers):
            await call()
            if _PACE:
                await asyncio.sleep(_PACE)

    began = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(callers)))
    return time.perf_counter() - began


def spread_threads(call: Callable[[], Any], jobs: int, callers: int) -> float:
    """Seconds of so many calls by so many threads, for systems that have no asynchronous call."""

    def caller() -> None:
        for _ in range(jobs // callers):
            call()
            if _PACE:
                time.sleep(_PACE)

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


# ---------------------------------------------------------------- the command line


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
