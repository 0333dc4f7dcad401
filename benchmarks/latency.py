"""From submit to start at light load, with the blocking-pop round trip beside it as the floor."""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import Any

import asyncpg
import redis.asyncio

from benchmarks.handlers import handlers, stamp
from benchmarks.rig import Bench, bench
from jobmaster.client.cluster import Cluster
from jobmaster.wiring import open_cluster

WARM_UP = 50


async def light(cluster: Cluster, jobs: int, per_second: float) -> list[float]:
    """Milliseconds from before the submit call to the first line of the handler."""
    receipts = []
    began = time.perf_counter()
    for number in range(jobs):
        await asyncio.sleep(max(began + number / per_second - time.perf_counter(), 0))
        receipts.append(await cluster.submit(stamp, {"sent_us": time.time_ns() // 1000}))
    results = [await receipt.result(timeout=20) for receipt in receipts]
    return [us / 1000 for us in results[WARM_UP:]]


async def held(cluster: Cluster, jobs: int) -> list[float]:
    """Milliseconds from the due time to the start of jobs that waited in the master."""
    receipts = []
    for number in range(jobs):
        due_us = time.time_ns() // 1000 + 2_000_000 + number * 10_000
        after = due_us / 1e6 - time.time()
        receipts.append(await cluster.submit(stamp, {"sent_us": due_us}, after=after, durability="master"))
    return [(await receipt.result(timeout=60)) / 1000 for receipt in receipts]


async def transactions(rig: Bench, cluster: Cluster, jobs: int, *, bare: bool) -> list[float]:
    """Milliseconds from the commit of the caller's transaction to the start."""
    connection = await asyncpg.connect(rig.servers.dsn)
    waits = []
    try:
        for _ in range(jobs):
            if bare:
                async with connection.transaction():
                    receipt = await cluster.submit(stamp, {"sent_us": 0}, connection=connection)
            else:
                async with cluster.transaction(connection) as tx:
                    receipt = await tx.submit(stamp, {"sent_us": 0})
            committed_us = time.time_ns() // 1000
            waits.append((await receipt.result(timeout=20) - committed_us) / 1000)
            await asyncio.sleep(0.037)
    finally:
        await connection.close()
    return waits


async def floor(url: str, rounds: int) -> list[float]:
    """Milliseconds of one push that wakes one blocking pop."""
    waiting, pushing = redis.asyncio.from_url(url), redis.asyncio.from_url(url)
    found = []
    for _ in range(rounds):
        popped: asyncio.Future[Any] = asyncio.ensure_future(waiting.blpop(["bench:floor"], timeout=5))
        await asyncio.sleep(0.01)
        began = time.perf_counter()
        await pushing.rpush("bench:floor", b"1")
        await popped
        found.append((time.perf_counter() - began) * 1000)
    await waiting.aclose()
    await pushing.aclose()
    return found


def quantiles(values: list[float]) -> dict[str, float]:
    """Median, 99th percentile, maximum in milliseconds."""
    ordered = sorted(values)
    return {
        "p50_ms": round(statistics.median(ordered), 3),
        "p99_ms": round(ordered[min(int(len(ordered) * 0.99), len(ordered) - 1)], 3),
        "max_ms": round(ordered[-1], 3),
        "jobs": len(ordered),
    }


async def measure(rig: Bench, seconds: float) -> dict[str, Any]:
    """All rows on one cluster."""
    async with await open_cluster(rig.settings, handlers) as cluster:
        return {
            "submit_to_start": quantiles(await light(cluster, int(seconds * 100) + WARM_UP, 100)),
            "due_to_start": quantiles(await held(cluster, 200)),
            "commit_to_start_bare": quantiles(await transactions(rig, cluster, 40, bare=True)),
            "commit_to_start_hinted": quantiles(await transactions(rig, cluster, 100, bare=False)),
            "floor_blocking_pop": quantiles(await floor(rig.servers.url, 200)),
        }


def run(*, seconds: float) -> dict[str, Any]:
    """One agent, 100 jobs a second."""
    with bench() as rig:
        rig.start_agent()
        return asyncio.run(measure(rig, seconds))
