"""``python -m benchmarks.latency``: from submit, due time or commit to the first line of the handler.

Each handler records its own start, as the result of its job; the figures are read from the master afterwards, so that no
reader waits for a result while others are measured. The floor is a bare blocking pop that another connection's push wakes.

Half load is measured twice: in a producer whose garbage collector is as CPython sets it, and then, as ``half_load``, in the
same process after ``tune_collector``, which the documentation advises for such rates.

With ``--trace`` each leg of the way is measured instead: functions of the product are wrapped, in this process and in the
agent's (``benchmarks.support.leg_stamps``). The wrappers cost microseconds for each job, so totals are those of the run
without them.
"""

from __future__ import annotations

import asyncio
import gc
import statistics
import time
from pathlib import Path
from typing import Any

import asyncpg
import click
import redis.asyncio
import uvloop

from benchmarks.support.handlers import handlers, stamp
from benchmarks.support.measured_cluster import MeasuredCluster, measured_cluster
from benchmarks.support.report import output_options, progress, show
from jobmaster.client.cluster import Cluster
from jobmaster.collector import tune_collector
from jobmaster.wiring import open_cluster

WARM_UP = 50
_CALIBRATION_JOBS = 40_000
_CALIBRATION_CALLERS = 200
_TICK_SECONDS = 0.005
TRACED_HANDLERS = "benchmarks.support.traced_handlers"


async def light(cluster: Cluster, jobs: int, per_second: float) -> list[bytes]:
    """One job after the other, at even distances."""
    began = time.perf_counter()
    ids = []
    for number in range(jobs):
        await asyncio.sleep(max(began + number / per_second - time.perf_counter(), 0))
        ids.append((await cluster.submit(stamp, {"sent_us": time.time_ns() // 1000})).id_bytes)
    return ids[WARM_UP:]


async def most(cluster: Cluster) -> float:
    """Jobs a second from submit to outcome, sent one by one by many callers in this process beside agent and servers."""
    ids: list[bytes] = []
    numbers = iter(range(_CALIBRATION_JOBS))

    async def caller() -> None:
        for _ in numbers:
            ids.append((await cluster.submit(stamp, {"sent_us": time.time_ns() // 1000})).id_bytes)

    began = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(_CALIBRATION_CALLERS)))
    await cluster.wait_all(ids[-1000:], timeout=60)
    return _CALIBRATION_JOBS / (time.perf_counter() - began)


async def half(cluster: Cluster, seconds: float) -> tuple[list[bytes], float]:
    """Half of what the cluster takes end to end from this one producer: ids and jobs per second."""
    per_second = await most(cluster) / 2
    ids: list[bytes] = []

    async def one() -> None:
        ids.append((await cluster.submit(stamp, {"sent_us": time.time_ns() // 1000})).id_bytes)

    began, sent = time.perf_counter(), 0
    while (passed := time.perf_counter() - began) < seconds:
        due = int(passed * per_second) - sent
        sent += due
        if due:
            await asyncio.gather(*(one() for _ in range(due)))
        await asyncio.sleep(_TICK_SECONDS)
    return ids, sent / seconds


async def held(cluster: Cluster, jobs: int) -> list[bytes]:
    """Jobs that wait in the master and fall due one after the other."""
    first_us = time.time_ns() // 1000 + 3_000_000
    ids = []
    for number in range(jobs):
        due_us = first_us + number * 10_000
        after = due_us / 1e6 - time.time()
        receipt = await cluster.submit(stamp, {"sent_us": due_us}, after=after, durability="master")
        ids.append(receipt.id_bytes)
    return ids


async def transactions(measured: MeasuredCluster, cluster: Cluster, jobs: int, *, bare: bool) -> list[float]:
    """Milliseconds from the commit of the caller's transaction to the start."""
    connection = await asyncpg.connect(measured.dsn)
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


async def floor(url: str, rounds: int, per_second: float) -> list[float]:
    """Milliseconds of one push that wakes one blocking pop."""
    waiting, pushing = redis.asyncio.from_url(url), redis.asyncio.from_url(url)
    found = []
    for _ in range(rounds):
        popped: asyncio.Future[Any] = asyncio.ensure_future(waiting.blpop(["bench:floor"], timeout=5))
        await asyncio.sleep(1 / per_second)
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


async def recorded(measured: MeasuredCluster, cluster: Cluster, ids: list[bytes]) -> dict[str, float]:
    """What the handlers of these jobs measured, from their results."""
    await cluster.wait_all(ids[-1000:], timeout=60)
    connection = await measured.connect()
    try:
        while True:
            rows = await connection.fetch(
                "SELECT convert_from(result, 'UTF8')::bigint AS us FROM job"
                " WHERE id = ANY ($1::uuid[]) AND result IS NOT NULL",
                [id_.hex() for id_ in ids],
            )
            if len(rows) == len(ids):
                return quantiles([row["us"] / 1000 for row in rows])
            await asyncio.sleep(0.05)
    finally:
        await connection.close()


def middle(found: list[dict[str, float]]) -> dict[str, float]:
    """Of several runs: the median of their medians and of their 99th percentiles, and the longest of all."""
    return {
        "p50_ms": round(statistics.median(one["p50_ms"] for one in found), 3),
        "p99_ms": round(statistics.median(one["p99_ms"] for one in found), 3),
        "max_ms": max(one["max_ms"] for one in found),
        "jobs": sum(int(one["jobs"]) for one in found),
        "runs": len(found),
    }


async def half_loads(measured: MeasuredCluster, cluster: Cluster, seconds: float, runs: int) -> dict[str, float]:
    """Several runs at half load: the middle of their quantiles and of their rates, and how often the garbage collector of
    this process has looked at all objects meanwhile."""
    loads, rates, collections = [], [], 0
    for _ in range(runs):
        before = _full_collections()
        ids, rate = await half(cluster, seconds)
        collections += _full_collections() - before
        loads.append(await recorded(measured, cluster, ids))
        rates.append(rate)
        progress(f"half load: {loads[-1]}, {rate:,.0f} jobs a second, full collections so far: {collections}")
    return {**middle(loads), "jobs_per_second": round(statistics.median(rates)), "full_collections": collections}


def _full_collections() -> int:
    return int(gc.get_stats()[-1]["collections"])


async def measure(measured: MeasuredCluster, seconds: float, runs: int) -> dict[str, Any]:
    """All rows on one cluster; the floor before and after each, so that a machine that became busy shows."""
    rounds = max(int(seconds * 25), 20)
    floors, lights, helds = [], [], []
    async with await open_cluster(measured.settings, handlers) as cluster:
        await light(cluster, WARM_UP, 100)
        before = measured.cpu_seconds()
        for _ in range(runs):
            bare = await floor(measured.url, rounds, 100)
            lights.append(await recorded(measured, cluster, await light(cluster, int(seconds * 100) + WARM_UP, 100)))
            floors.append(quantiles(bare + await floor(measured.url, rounds, 100)))
            helds.append(await recorded(measured, cluster, await held(cluster, max(int(seconds * 50), 20))))
            progress(f"light load: {lights[-1]}; held: {helds[-1]}")
        after = measured.cpu_seconds()
        untuned = await half_loads(measured, cluster, seconds / 4, runs)
        tune_collector()
        loads = await half_loads(measured, cluster, seconds / 4, runs)
        found, floored, few = middle(lights), middle(floors), max(int(seconds * 6), 5)
        return {
            "p50_ms": found["p50_ms"],
            "p99_ms": found["p99_ms"],
            "max_ms": found["max_ms"],
            "floor_p50_ms": floored["p50_ms"],
            "floor_p99_ms": floored["p99_ms"],
            "held": middle(helds),
            "half_load": loads,
            "half_load_untuned": untuned,
            "commit_to_start_bare": quantiles(await transactions(measured, cluster, few, bare=True)),
            "commit_to_start_hinted": quantiles(await transactions(measured, cluster, few, bare=False)),
            "jobs_per_second": 100,
            "jobs": found["jobs"],
            "runs": runs,
            "cpu_seconds_light_and_held": {name: round(after[name] - before[name], 2) for name in after},
            "servers": await measured.described(),
        }


async def trace(measured: MeasuredCluster, seconds: float) -> dict[str, Any]:
    """Each leg at light load and at half load."""
    from benchmarks.support import leg_stamps

    leg_stamps.wrap_producer()
    submit = Cluster.submit

    async def stamped(self: Cluster, *arguments: Any, **options: Any) -> Any:
        called_ns = time.monotonic_ns()
        receipt = await submit(self, *arguments, **options)
        leg_stamps.stamp(leg_stamps.Stamp.ACKNOWLEDGED, (receipt.id_bytes,))
        leg_stamps.called(receipt.id_bytes, called_ns)
        return receipt

    async with await open_cluster(measured.settings, handlers) as cluster:
        await light(cluster, WARM_UP, 100)
        tune_collector()
        setattr(Cluster, "submit", stamped)  # noqa: B010 - a method of the product is replaced
        ids = await light(cluster, int(seconds * 100) + WARM_UP, 100)
        found: dict[str, Any] = {"light_load": await _legs(measured, cluster, ids)}
        ids, rate = await half(cluster, seconds / 4)
        return {
            **found,
            "half_load": await _legs(measured, cluster, ids),
            "half_load_jobs_per_second": round(rate),
            "servers": await measured.described(),
        }


async def _legs(measured: MeasuredCluster, cluster: Cluster, ids: list[bytes]) -> dict[str, Any]:
    """Quantiles of each leg of these jobs."""
    from benchmarks.support import leg_stamps

    await cluster.wait_all(ids[-1000:], timeout=60)
    path = Path(measured.directory, "stamps.json")
    ours = leg_stamps.taken()
    await (await cluster.submit("bench.write_stamps", {"path": str(path)})).result(timeout=60)
    stamps = {name: by_id or ours[name] for name, by_id in leg_stamps.read(path).items()}
    return {leg: quantiles(spans) for leg, spans in leg_stamps.legs(stamps, ids).items() if spans}


def run_traced(seconds: float) -> dict[str, Any]:
    """``trace`` on a cluster whose agent is wrapped."""
    with measured_cluster({"handlers": [TRACED_HANDLERS]}) as measured:
        measured.start_agent()
        return uvloop.run(trace(measured, seconds))


def run(seconds: float, runs: int) -> dict[str, Any]:
    """One agent with five buckets, one for each priority."""
    with measured_cluster() as measured:
        measured.start_agent()
        return uvloop.run(measure(measured, seconds, runs))


@click.command()
@click.option("--seconds", default=10.0, show_default=True, help="Of light load in one run; the rest in proportion.")
@click.option("--runs", default=5, show_default=True)
@click.option("--trace", "traced", is_flag=True, help="Where the time goes, leg by leg; one run.")
@output_options
def main(seconds: float, runs: int, traced: bool, as_json: bool, save: bool) -> None:
    """Milliseconds from submit to start at 100 jobs a second and at half load; from due time to start of HELD jobs."""
    if not traced:
        show("latency", run(seconds, runs), as_json=as_json, save=save)
        return
    found = run_traced(seconds)
    show("latency_legs", found, as_json=as_json, save=save)
    for load in () if as_json else ("light_load", "half_load"):
        print(f"{load:44}{'p50 ms':>10}{'p99 ms':>10}")
        for leg, figures in found[load].items():
            print(f"{leg:44}{figures['p50_ms']:>10.3f}{figures['p99_ms']:>10.3f}")


if __name__ == "__main__":
    main()
