"""What one call costs each side, measured on real servers: the unit costs of the simulation.

No agent runs. A probe registers agents with their buckets by the real statements and then makes the calls of agents and
producers. The server's side is the CPU of its processes as the scheduler counts it, so other work on the machine changes it
little; the client's side is the CPU of this process. Costs of batches are fitted as ``fixed + rows x per_row``, costs of
what reads the whole cluster as ``fixed + agents x per_agent``, by least squares of the relative errors.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.drain import empty
from benchmarks.fleet.cost_fitting import Used, each, fitted, postgres_cpu
from benchmarks.fleet.store_probe import StoreProbe
from benchmarks.master.fallback import outcome
from benchmarks.support.master_probe import MasterProbe
from benchmarks.support.measured_cluster import MeasuredCluster, measured_cluster
from benchmarks.support.report import progress
from jobmaster.client.bucket_directory import BucketDirectory
from jobmaster.clock import new_id
from jobmaster.master.driver.statements import sql
from jobmaster.model.agent import Agent, AgentState
from jobmaster.model.bucket import Bucket, BucketState
from jobmaster.model.ids import AgentId, BucketId, Fence
from jobmaster.model.job import InFlightRow, NewJob

BUCKETS = 15
"""Of each agent: three lanes with five priorities."""
SIZES = (100, 1000, 3000)
"""Agents at which the control plane is measured."""
BATCHES = ((1, 400), (10, 200), (100, 60), (1000, 15), (2000, 10))
"""Rows of a batch, and how often it is sent."""
_CALLS = 200
_PLAN_MARKS = ("Seq Scan", "Sort", "Rows Removed", "Execution Time")
_ARGS = b'{"text":"' + b"x" * 89 + b'"}'


async def used(
    measured: MeasuredCluster, probe: MasterProbe, calls: int, call: Callable[[], Awaitable[object]]
) -> Used:
    """Mean cost of a call, after a few that are not counted."""
    for _ in range(6):  # the sixth of a prepared statement has its final plan
        await call()
    log = await probe.sql.fetchval("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn")
    server, client = postgres_cpu(measured), time.process_time()
    for _ in range(calls):
        await call()
    client, server = time.process_time() - client, postgres_cpu(measured) - server
    log = await probe.sql.fetchval("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn") - log
    return Used(round(server / calls * 1e6, 2), round(client / calls * 1e6, 2), round(float(log) / calls, 1))


# ---------------------------------------------------------------- the control plane


async def populate(probe: MasterProbe, agents: int, there: list[AgentId]) -> None:
    """Living agents with their buckets, up to a number; statistics as autovacuum would make them."""
    lanes = ("default", "mail", "reports")
    while len(there) < agents:
        owner = AgentId(new_id())
        store = f"store-{len(there) % 10}"
        await probe.master.members.register(
            Agent(
                id=owner, name="bench", host="bench", pid=1, version="0", mode="full", store=store, weight=1,
                state=AgentState.ACTIVE, lease_us=0, lease_seconds=3600.0, started_us=0,
            ),
            list(lanes),
            [],
        )  # fmt: skip
        made = [
            Bucket(
                id=BucketId(new_id()), store=store, lane=lane, priority=priority, state=BucketState.ACTIVE, epoch=1,
                owner=owner,
            )
            for lane in lanes for priority in range(1, 6)
        ]  # fmt: skip
        assert len(made) == BUCKETS
        assert await probe.master.buckets.create_buckets(made)
        there.append(owner)
    for name in ("agent", "bucket", "lease"):
        await probe.sql.execute(f"VACUUM (ANALYZE) {name}")


class Ticks:
    """A clock on which a second passes with every look, so that every refresh is due."""

    def __init__(self) -> None:
        self._now = 0.0

    def boottime(self) -> float:
        self._now += 1.0
        return self._now

    def wall_us(self) -> int:
        return time.time_ns() // 1000


async def control(measured: MeasuredCluster, probe: MasterProbe, owners: list[AgentId]) -> dict[str, Used]:
    """Every statement that a cluster at rest sends."""
    me, master = owners[0], probe.master
    turn = iter(range(1 << 30))
    stores = [f"store-{number}" for number in range(10)]
    await master.leadership.acquire(me, 1, 3600.0)

    async def whole_map() -> None:
        directory = directory_of(probe)
        await directory.renew()
        assert len(directory.all_handles()) >= len(owners) * BUCKETS

    async def none_lost() -> None:
        assert await master.rescue.take_lost(me, stores, {}) is None

    async def none_dead() -> None:
        assert not await master.members.certify_dead(me, 64)

    few = max(min(_CALLS, 60_000 // len(owners)), 10)
    return {
        "renew": await used(
            measured, probe, _CALLS, lambda: master.members.renew(owners[next(turn) % len(owners)], 3600.0)
        ),
        "leader_tick": await used(measured, probe, _CALLS, lambda: master.leadership.tick(me, 1, 3600.0, 300.0)),
        "certify": await used(measured, probe, few, none_dead),
        "take_lost": await used(measured, probe, few, none_lost),
        "draining": await used(
            measured, probe, few, lambda: master.queries.list_buckets(states=[BucketState.DRAINING])
        ),
        "map": await used(measured, probe, few, whole_map),
        "compare": await used(
            measured, probe, _CALLS, lambda: master.onboarding.bucket_rows(probe.fences[0].bucket_id, None, 5000)
        ),
    }


def directory_of(probe: MasterProbe) -> BucketDirectory:
    """The map of a producer that knows all stores, and is due for a refresh at every look."""
    stores: Any = dict.fromkeys(["default", *(f"store-{number}" for number in range(10))], object())
    return BucketDirectory(probe.master.queries, stores, Ticks(), 10.0)


async def plans(probe: MasterProbe, owners: list[AgentId]) -> dict[str, list[str]]:
    """The lines of the plans of statements about small tables that show reads and sorts, on an agent's connection."""
    found = {}
    arguments: dict[str, tuple[Any, ...]] = {
        "members/renew": (owners[0], 3600.0, None),
        "leadership/tick": (owners[0], 1, 3600.0, 300.0),
        "queries/bucket_map": (None, None),
        "buckets/take_lost": (owners[0], ["store-0"], [], []),
    }
    for name, values in arguments.items():

        async def explain(connection: Any, name: str = name, values: tuple[Any, ...] = values) -> list[Any]:
            async with connection.transaction():
                return list(await connection.fetch("EXPLAIN (ANALYZE, BUFFERS OFF, COSTS OFF) " + sql(name), *values))

        lines = await probe.master._control.run("explain", explain)
        found[name] = [line[0].strip() for line in lines if any(word in line[0] for word in _PLAN_MARKS)]
    return found


# ---------------------------------------------------------------- rows


def new_jobs(count: int) -> list[NewJob]:
    """Jobs that are due."""
    return [NewJob(new_id(), 3, "default", "bench.noop", _ARGS, b"", 0) for _ in range(count)]


def in_flight(count: int) -> list[InFlightRow]:
    """Jobs that run."""
    return [
        InFlightRow(new_id(), "PROCESSING", 3, "default", "bench.noop", 1, 1, 0, 0, _ARGS, b"") for _ in range(count)
    ]


async def rows(
    measured: MeasuredCluster, probe: MasterProbe, batches: Sequence[tuple[int, int]]
) -> dict[str, list[tuple[int, Used]]]:
    """Every statement about jobs, by the size of its batch."""
    fence: Fence = probe.fences[0]
    master = probe.master
    found: dict[str, list[tuple[int, Used]]] = {name: [] for name in ("copy", "upsert", "persist", "hold", "onboard")}
    for size, calls in batches:
        ready = [[outcome(fence.bucket_id) for _ in range(size)] for _ in range(calls + 6)]
        found["copy"].append((size, await used(measured, probe, calls, each(ready, master.outcomes.copy_final))))
        await empty(measured)
        few = max(calls // 2, 8)
        going = [in_flight(size) for _ in range(few + 6)]
        ended = [[outcome(fence.bucket_id)._replace(id=row.id) for row in batch] for batch in going]
        found["persist"].append(
            (size, await used(measured, probe, few, each(going, partial(master.outcomes.persist, fence))))
        )
        found["upsert"].append((size, await used(measured, probe, few, each(ended, master.outcomes.record_final))))
        await empty(measured)
        fresh = [new_jobs(size) for _ in range(few + 6)]
        found["hold"].append((size, await used(measured, probe, few, each(fresh, master.intake.insert_held))))

        async def onboard(limit: int = size) -> None:
            answer = await master.onboarding.onboard(fence, "default", 3, 0.0, limit, None)
            assert len(answer.entries) == limit

        found["onboard"].append((size, await used(measured, probe, few, onboard)))
        await empty(measured)
        progress(f"batches of {size}: {', '.join(f'{name} {at[-1][1].server:,.0f} us' for name, at in found.items())}")
    return found


def flush_us(directory: Path) -> float:
    """Median time of one small synchronous write where the servers keep their data."""
    taken = []
    with tempfile.NamedTemporaryFile(dir=directory) as file:
        for _ in range(200):
            began = time.perf_counter()
            os.write(file.fileno(), bytes(8192))
            os.fdatasync(file.fileno())
            taken.append(time.perf_counter() - began)
    return round(statistics.median(taken) * 1e6, 1)


# ---------------------------------------------------------------- all of it


async def _measured(
    measured: MeasuredCluster, sizes: Sequence[int], batches: Sequence[tuple[int, int]]
) -> dict[str, Any]:
    probe = await MasterProbe.open(measured)
    try:
        progress("statements about jobs")
        by_size = await rows(measured, probe, batches)
        owners: list[AgentId] = []
        grown: dict[str, list[tuple[int, Used]]] = {}
        for agents in sizes:
            await populate(probe, agents, owners)
            for name, cost in (await control(measured, probe, owners)).items():
                grown.setdefault(name, []).append((agents, cost))
            progress(
                f"{agents} agents: {', '.join(f'{name} {at[-1][1].server:,.0f} us' for name, at in grown.items())}"
            )
        shown = await plans(probe, owners)
    finally:
        with contextlib.suppress(TimeoutError):
            await probe.close()
    store = await StoreProbe(measured).measured()
    return {
        "buckets_per_agent": BUCKETS,
        "flush_us": flush_us(measured.directory),
        "rows": {name: _lines(points) for name, points in by_size.items()},
        "control": {name: _lines(points) for name, points in grown.items()},
        "store": store,
        "plans": shown,
    }


def _lines(points: list[tuple[int, Used]]) -> dict[str, Any]:
    """Three fits, and what they were made from."""
    return {
        "server_us": fitted([(x, cost.server) for x, cost in points]),
        "client_us": fitted([(x, cost.client) for x, cost in points]),
        "wal_bytes": fitted([(x, cost.wal_bytes) for x, cost in points]),
        "points": [{"x": x, **cost._asdict()} for x, cost in points],
    }


def measured(sizes: Sequence[int] = SIZES, batches: Sequence[tuple[int, int]] = BATCHES) -> dict[str, Any]:
    """The report that the simulation reads.

    Args:
        sizes: numbers of agents, growing.
        batches: rows of a batch, and how often it is sent.
    """
    with measured_cluster() as measured:
        servers = asyncio.run(measured.described())
        return {**asyncio.run(_measured(measured, sizes, batches)), "servers": servers}
