"""How long tenants wait while one of them floods the cluster."""

from __future__ import annotations

import asyncio
import multiprocessing
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import uvloop

from benchmarks.support.handlers import handlers, stamp_and_sleep
from benchmarks.support.measured_cluster import MEDIUM_ONLY, MeasuredCluster, measured_cluster
from jobmaster.settings.loader import load_settings
from jobmaster.settings.model import ClusterSettings
from jobmaster.wiring import open_cluster

TENANTS = 1000
OTHERS_PER_SECOND = 20
TENANT_JOB_SECONDS = 0.05
_TICK_SECONDS = 0.01
_WARM_UP_SECONDS = 3.0
_HEAD_START_SECONDS = 1.0
"""The agent has more than it can run when the others begin."""


async def send(
    settings: ClusterSettings, per_second: float, seconds: float, tenants: int, name: str = "tenant", began: Any = None
) -> int:
    """Submit jobs of so many tenants in turn, each by a call of its own, at a rate. The tenants are ``name-N``.

    Args:
        began: set when the connections stand.

    Returns: jobs that were acknowledged.
    """
    pending: set[asyncio.Task[object]] = set()
    failed = 0

    def done(task: asyncio.Task[object]) -> None:
        nonlocal failed
        pending.discard(task)
        failed += task.exception() is not None

    async with await open_cluster(settings, handlers) as cluster:
        if began is not None:
            began.set()
        start, sent = time.perf_counter(), 0
        while (elapsed := time.perf_counter() - start) < seconds:
            while sent < elapsed * per_second:
                args = {"sent_us": time.time_ns() // 1000, "seconds": TENANT_JOB_SECONDS}
                task = asyncio.ensure_future(cluster.submit(stamp_and_sleep, args, tenant=f"{name}-{sent % tenants}"))
                pending.add(task)
                task.add_done_callback(done)
                sent += 1
            await asyncio.sleep(_TICK_SECONDS)
        if pending:
            await asyncio.wait(pending)
    return sent - failed


def _flood(config: Path, per_second: float, seconds: float, began: Any, sent: Any) -> None:
    settings = load_settings(config, {}, []).settings
    sent.put(uvloop.run(send(settings, per_second, seconds, 1, "flood", began)))


@asynccontextmanager
async def flooding(config: Path, per_second: float, seconds: float) -> AsyncIterator[Callable[[], Awaitable[int]]]:
    """One tenant sends from a process of its own; at no rate there is none, and the same time passes.

    Yields: waits for its end and returns its jobs.
    """
    if not per_second:
        await asyncio.sleep(_HEAD_START_SECONDS)
        yield lambda: asyncio.sleep(0, 0)
        return
    context = multiprocessing.get_context("spawn")
    began, counts = context.Event(), context.Queue()
    process = context.Process(target=_flood, args=(config, per_second, seconds, began, counts), daemon=True)

    async def alive_until(ready: Callable[[], bool]) -> None:
        while not ready():
            if process.exitcode is not None and not ready():
                raise RuntimeError(f"the process of the flood has ended with {process.exitcode}")
            await asyncio.sleep(_TICK_SECONDS)

    async def count() -> int:
        await alive_until(lambda: not counts.empty())
        return int(counts.get())

    process.start()
    try:
        await alive_until(began.is_set)
        await asyncio.sleep(_HEAD_START_SECONDS)
        yield count
    finally:
        process.terminate()
        process.join(10)


async def tenant_waits(measured: MeasuredCluster, seconds: float, flood: int) -> dict[str, float]:
    """Waits of 999 tenants that send 20 jobs a second together, in milliseconds, while one sends ``flood`` times as many.

    A job keeps one of 50 slots for 50 ms, so the agent runs 1,000 a second at most. The flood comes from a process of its
    own: in that of the others it would make them wait before they have sent anything.
    """
    # Both loads begin on an agent that has run jobs.
    await send(measured.settings, OTHERS_PER_SECOND, _WARM_UP_SECONDS, 1, "warm")
    async with flooding(measured.config, OTHERS_PER_SECOND * flood, seconds + _HEAD_START_SECONDS) as counted:
        sent = await send(measured.settings, OTHERS_PER_SECOND, seconds, TENANTS - 1)
        flooded = await counted()
    connection = await measured.connect()
    try:
        query = """SELECT convert_from(result, 'UTF8')::bigint / 1000.0 FROM job
                   WHERE state = 'SUCCEEDED' AND tenant_of(headers) LIKE 'tenant-%' ORDER BY 1"""
        async with asyncio.timeout(60):
            waits: list[float] = []
            while len(waits) < sent:
                await asyncio.sleep(0.1)
                waits = [float(row[0]) for row in await connection.fetch(query)]
        waiting = await connection.fetchval("SELECT count(*) FROM job WHERE state = 'HELD'")
    finally:
        await connection.close()
    at = [waits[min(int(len(waits) * share), len(waits) - 1)] for share in (0.5, 0.99)]
    return {
        "p50_ms": round(at[0], 2),
        "p99_ms": round(at[1], 2),
        "jobs": sent,
        "flood": flooded,
        "left_in_master": waiting,
    }


def tenant_wait_ratio(seconds: float, pairs: int) -> dict[str, Any]:
    """The 99th percentile of the waits of 999 tenants while one more sends 99 % of all jobs, twice what the agent can run,
    against the same without it: the median of pairs, because other work on the machine changes single runs."""
    loads = {"tenants_alone": 0, "tenants_flooded": 99}
    found: dict[str, list[dict[str, float]]] = {name: [] for name in loads}
    for pair in range(pairs):
        for name in sorted(loads, reverse=pair % 2 == 1):
            with measured_cluster({"agents": {"default": {"buckets": {**MEDIUM_ONLY, "medium": 1}}}}) as measured:
                measured.start_agent()
                found[name].append(uvloop.run(tenant_waits(measured, seconds, loads[name])))
    ratios = [
        flooded["p99_ms"] / alone["p99_ms"]
        for alone, flooded in zip(found["tenants_alone"], found["tenants_flooded"], strict=True)
    ]
    return {
        "tenant_wait_ratio": round(statistics.median(ratios), 2),
        "tenant_wait_ratios": [round(ratio, 2) for ratio in ratios],
        **{name: {key: statistics.median(run[key] for run in runs) for key in runs[0]} for name, runs in found.items()},
    }
