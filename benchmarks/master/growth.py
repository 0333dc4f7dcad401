"""``python -m benchmarks.master.growth``: what one job costs while something else grows.

Axes that only the master pays for (held rows, attached partitions, a pinned snapshot, concurrent claims) call the claiming
statement itself; the cost is the CPU of the database server per job, which other work on the machine does not change.
Axes of the whole cluster (buckets, agents) drain jobs with real agents; the cost is the CPU of agents and servers per job.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import click

from benchmarks import drain
from benchmarks.support.master_probe import MasterProbe
from benchmarks.support.measured_cluster import MEDIUM_ONLY, measured_cluster
from benchmarks.support.report import output_options, progress, show

Points = list[dict[str, Any]]
_WARM_UP_BATCHES = 3
_LOTS = 5
"""A point is the median of so many lots of claims, or of so many drains."""
_FEW_HELD = 10_000


async def _claimed(probe: MasterProbe, batches: int) -> dict[str, float]:
    """The median cost of some lots of batches, after a few that are not counted."""
    await probe.fill((batches + _WARM_UP_BATCHES) * 1000, due=True)
    await probe.claims(_WARM_UP_BATCHES)
    lots = [await probe.claims(max(batches // _LOTS, 1)) for _ in range(min(_LOTS, batches))]
    return sorted(lots, key=lambda lot: lot["cost_us_per_job"])[len(lots) // 2]


async def _restore(probe: MasterProbe) -> None:
    await probe.sql.execute("DELETE FROM job WHERE state <> 'HELD'")
    await probe.sql.execute("VACUUM (ANALYZE) job")


async def held_rows(probe: MasterProbe, sizes: Sequence[int], batches: int) -> Points:
    """Jobs that are due later, in the same table and under the same index."""
    points, there = [], 0
    for size in sizes:
        await probe.fill(size - there, due=False)
        there = size
        points.append({"x": size, **await _claimed(probe, batches)})
        progress(f"held rows: {points[-1]}")
        await _restore(probe)
    return points


async def partitions(probe: MasterProbe, counts: Sequence[int], batches: int) -> Points:
    """Attached partitions of ``job``; the rows lie in today's."""
    points = []
    await probe.fill(_FEW_HELD, due=False)
    for wanted in counts:
        ahead = 0
        while (there := await probe.sql.fetchval("SELECT count(*) FROM partitions_of('job')")) < wanted:
            ahead += 7
            await probe.sql.execute("SELECT ensure_partitions('day', $1)", ahead)
        points.append({"x": there, **await _claimed(probe, batches)})
        progress(f"partitions: {points[-1]}")
        await _restore(probe)
    return points


async def pinned_snapshot(probe: MasterProbe, batches: int) -> Points:
    """Batch after batch while an old transaction keeps every dead row and index entry; x is batches so far."""
    points = []
    await probe.fill(_FEW_HELD, due=False)
    rounds = 5
    await probe.fill((rounds * batches + _WARM_UP_BATCHES) * 1000, due=True)
    other = await probe.measured.connect()
    try:
        async with other.transaction(isolation="repeatable_read", readonly=True):
            await other.fetchval("SELECT count(*) FROM bucket")
            await probe.claims(_WARM_UP_BATCHES)
            for number in range(1, rounds + 1):
                points.append({"x": number * batches, **await probe.claims(batches)})
                await probe.sql.execute("VACUUM job")  # as autovacuum would: it may remove nothing
                progress(f"pinned snapshot: {points[-1]}")
    finally:
        await other.close()
    await _restore(probe)
    return points


async def concurrent_claims(probe: MasterProbe, counts: Sequence[int], batches: int) -> Points:
    """Claims of different buckets of one lane and priority at the same time (a process has at most 4 connections, so
    each 4 buckets have a client of their own)."""
    points = []
    await probe.fill(_FEW_HELD, due=False)
    for count in counts:
        probes = [await MasterProbe.open(probe.measured, min(4, count - start)) for start in range(0, count, 4)]
        each = max(batches // count, 1)
        await probe.fill((count * each + _WARM_UP_BATCHES) * 1000, due=True)
        await probe.claims(_WARM_UP_BATCHES)
        before, began = probe.backend_cpu(), time.perf_counter()
        claims = [one.claims(each, fence) for one in probes for fence in one.fences]
        done = await asyncio.gather(*claims)
        points.append({"x": count, **probe.cost(int(sum(one["jobs"] for one in done)), before, began)})
        progress(f"concurrent claims: {points[-1]}")
        for one in probes:
            await one.close()
        await _restore(probe)
    return points


def _of_master(work: Callable[[MasterProbe], Awaitable[Points]]) -> Points:
    async def measure() -> Points:
        probe = await MasterProbe.open(measured)
        try:
            return await work(probe)
        finally:
            await probe.close()

    with measured_cluster() as measured:
        return asyncio.run(measure())


def _drained(jobs: int, buckets: int, processes: int, runs: int = _LOTS) -> dict[str, float]:
    """CPU of all agents and servers per drained job, the median of some runs."""
    agents = {"default": {"buckets": {**MEDIUM_ONLY, "medium": buckets}, "processes": processes}}
    with measured_cluster({"agents": agents}) as measured:
        measured.start_agent()
        drain.one_drain(measured, max(jobs // 10, 1000))
        found = [drain.one_drain(measured, jobs) for _ in range(runs)]
    costs = sorted(sum(one["cpu_seconds"].values()) / jobs * 1e6 for one in found)
    rates = sorted(one["jobs_per_second"] for one in found)
    return {
        "cost_us_per_job": round(costs[len(costs) // 2], 3),
        "wall_us_per_job": round(1e6 / rates[len(rates) // 2], 3),
        "jobs": jobs,
    }


def of_cluster(axis: str, counts: Sequence[int], jobs: int) -> Points:
    """Drain with one process and many buckets, or with many processes of one bucket each."""
    points: Points = []
    for count in counts:
        buckets, processes = (count, 1) if axis == "buckets" else (1, count)
        points.append({"x": count, **_drained(jobs, buckets, processes)})
        progress(f"{axis}: {points[-1]}")
    return points


def run(axes: Sequence[str], *, held: int, jobs: int, batches: int, points: int | None = None) -> dict[str, Any]:
    """Some axes, each on servers of its own; the first so many points of each."""
    sizes = [size for size in (10_000, 100_000, 1_000_000, 10_000_000) if size <= held][:points]
    ways: dict[str, Callable[[], Points]] = {
        "held_rows": lambda: _of_master(lambda probe: held_rows(probe, sizes, batches)),
        "partitions": lambda: _of_master(lambda probe: partitions(probe, (7, 20, 40, 60)[:points], batches)),
        "pinned_snapshot": lambda: _of_master(lambda probe: pinned_snapshot(probe, batches)),
        "concurrent_claims": lambda: _of_master(lambda probe: concurrent_claims(probe, (1, 5, 20)[:points], batches)),
        "buckets": lambda: of_cluster("buckets", (5, 50, 500)[:points], jobs),
        "agents": lambda: of_cluster("agents", (1, 5, 20, 50)[:points], jobs),
    }
    return {axis: ways[axis]() for axis in axes}


AXES = ("held_rows", "partitions", "pinned_snapshot", "concurrent_claims", "buckets", "agents")


@click.command()
@click.option("--axis", "axes", type=click.Choice(AXES), multiple=True, help="Default: all.")
@click.option("--held", default=10_000_000, show_default=True, help="The largest table of the axis held_rows.")
@click.option("--jobs", default=100_000, show_default=True, help="Jobs of one drain.")
@click.option("--batches", default=100, show_default=True, help="Claims of 1,000 jobs for one point.")
@click.option("--points", default=None, type=click.IntRange(min=1), help="Only the first so many of each axis.")
@output_options
def main(
    axes: tuple[str, ...], held: int, jobs: int, batches: int, points: int | None, as_json: bool, save: bool
) -> None:
    """Cost of one job as held rows, partitions, dead rows, claimers, buckets and agents grow."""
    found = run(axes or AXES, held=held, jobs=jobs, batches=batches, points=points)
    show("growth", found, as_json=as_json, save=save)


if __name__ == "__main__":
    main()
