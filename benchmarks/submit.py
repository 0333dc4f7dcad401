"""How fast one producer process hands jobs in: one awaited call after another, many callers at once, and in bulk.

Beside it, as the floor, RPUSH of the very same messages by the plain driver: one item per command, and 1,000 items per
command. The agent that owns the buckets is frozen, so that nobody takes the jobs out or shares the processor.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import redis.asyncio
import uvloop

from benchmarks.handlers import handlers, payload
from benchmarks.rig import bench, summary
from jobmaster.client.cluster import Cluster
from jobmaster.clock import new_id
from jobmaster.codec import encode_args, encode_entry
from jobmaster.model.job import Entry
from jobmaster.wiring import open_cluster

TEXT = "x" * 20
CALLERS = (1, 10, 100, 1000)
_LEASES = {"lease": "600s", "renew": "10s"}
_ROOM = {"high_water_jobs": 100_000_000, "high_water_bytes": 1 << 40}


async def callers(cluster: Cluster, count: int, jobs: int) -> None:
    """``count`` coroutines, each awaiting one submit after the other."""

    async def caller() -> None:
        for _ in range(jobs // count):
            await cluster.submit(payload, {"text": TEXT})

    await asyncio.gather(*(caller() for _ in range(count)))


async def bulk(cluster: Cluster, jobs: int) -> None:
    """One ``submit_many``."""
    done = await cluster.submit_many(({"text": TEXT} for _ in range(jobs)), payload)
    assert done.submitted == jobs, done


async def bare_push(driver: redis.asyncio.Redis, jobs: int, per_command: int) -> None:
    """The same messages, ids and encoding included, without a client."""
    for _ in range(jobs // per_command):
        args = encode_args({"text": TEXT})
        await driver.rpush("bench:bare", *[_message(args) for _ in range(per_command)])
    await driver.delete("bench:bare")


def _message(args: bytes) -> bytes:
    return encode_entry(Entry(new_id(), 1, "bench.payload", args))


async def rate(work: Callable[[int], Awaitable[None]], jobs: int) -> tuple[float, float]:
    """Jobs per second, and per second of this process's CPU."""
    began, cpu = time.perf_counter(), time.process_time()
    await work(jobs)
    return jobs / (time.perf_counter() - began), jobs / (time.process_time() - cpu)


async def measure(settings: Any, url: str, jobs: int, runs: int) -> dict[str, Any]:
    """Every way, ``runs`` times each, one after the other."""
    found: dict[str, Any] = {}
    async with await open_cluster(settings, handlers) as cluster, redis.asyncio.from_url(url) as driver:
        await cluster.submit(payload, {"text": TEXT})
        # (name, jobs of one run, the work of one run); single calls are slow, so fewer of them are made.
        ways: list[tuple[str, int, Callable[[int], Awaitable[None]]]] = [
            ("bare_push_1", jobs // 10, lambda n: bare_push(driver, n, 1)),
            ("bare_push_1000", jobs, lambda n: bare_push(driver, n, 1000)),
            *((f"submit_{count}_callers", _share(jobs, count), _calling(cluster, count)) for count in CALLERS),
            ("submit_many", jobs, lambda n: bulk(cluster, n)),
        ]
        for name, share, way in ways:
            rates = [await rate(way, share) for _ in range(runs)]
            found[name] = {
                "jobs_per_second": summary([one[0] for one in rates]),
                "jobs_per_cpu_second": summary([one[1] for one in rates]),
            }
    return found


def _share(jobs: int, count: int) -> int:
    return jobs // 10 if count < 10 else jobs


def _calling(cluster: Cluster, count: int) -> Callable[[int], Awaitable[None]]:
    return lambda jobs: callers(cluster, count, jobs)


def run(jobs: int, runs: int) -> dict[str, Any]:
    """One fresh cluster with a frozen agent."""
    counts = {"critical": 0, "high": 0, "low": 0, "very_low": 0, "medium": 3}
    with bench({"agents": {"default": {"buckets": counts}}, "leases": _LEASES}) as rig:
        rig.start_agent()
        rig.signal_agents(signal.SIGSTOP)
        try:
            store = msgspec.structs.replace(rig.settings.stores["default"], **_ROOM)
            settings = msgspec.structs.replace(rig.settings, stores={"default": store})
            return uvloop.run(measure(settings, rig.servers.url, jobs, runs))
        finally:
            rig.signal_agents(signal.SIGCONT)
            for agent in rig.agents:
                agent.kill()
