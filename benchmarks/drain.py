"""``python -m benchmarks.drain``: from the store to one recorded outcome each, beside the floor of the same servers.

Jobs are handed in while the agents are frozen, then the agents are let go. The rate runs from that moment to the last outcome
in the master (``changed_at`` of the rows, on the same machine's clock), so every counted job is durable: synchronous_commit
is on, and the number of outcomes is counted in the table after each run. Ours, the floor and the raw COPY take turns on
the same servers; the agents are idle in the others' turns.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable
from typing import Any

import click

from benchmarks import floor
from benchmarks.support.handlers import handlers, millisecond, noop
from benchmarks.support.measured_cluster import MEDIUM_ONLY, MeasuredCluster, measured_cluster
from benchmarks.support.report import median, output_options, progress, show, summary
from jobmaster.agentstore.producer import ProducerStore
from jobmaster.wiring import open_cluster

TEXT = "x" * 89
"""Makes arguments of 100 bytes."""
_LOOK_SECONDS = 0.02
_LOOKS = 500
_OUTCOMES = (
    "SELECT count(*) AS found, extract(epoch FROM max(changed_at))::float8 AS last FROM job WHERE state = 'SUCCEEDED'"
)
_WORK: dict[str, Callable[..., Any]] = {"noop": noop, "1ms": millisecond}
FULL_CASES = [(1, 1), (1, 5), (1, 20), (2, 1), (2, 5), (2, 20)]


async def submit(measured: MeasuredCluster, jobs: int, handler: Callable[..., Any] = noop) -> float:
    """Submit in bulk; jobs per second."""
    async with await open_cluster(measured.settings, handlers) as cluster:
        began = time.perf_counter()
        done = await cluster.submit_many(({"text": TEXT} for _ in range(jobs)), handler)
        seconds = time.perf_counter() - began
    assert done.submitted == jobs, done
    return jobs / seconds


async def wait_drained(measured: MeasuredCluster) -> None:
    """Until no bucket holds anything: a claimed list goes only after the commit of all its outcomes."""
    settings = measured.settings.stores["default"]
    connection = await measured.connect()
    store = await ProducerStore.connect(cluster="bench", name="default", url=measured.url, settings=settings)
    try:
        buckets = [row["id"].bytes for row in await connection.fetch("SELECT id FROM bucket WHERE state = 'ACTIVE'")]
        while any(  # noqa: ASYNC110
            depth and (depth.pending or depth.assigned or depth.claimed_lists) for depth in await store.depths(buckets)
        ):
            await asyncio.sleep(_LOOK_SECONDS)  # the rate is read from the rows, not from this clock
    finally:
        await store.close()
        await connection.close()


async def outcomes(measured: MeasuredCluster, jobs: int, since: float) -> tuple[int, float]:
    """Outcomes in the master, and seconds from a moment to the last of them. What is missing is waited for, but not for
    ever."""
    connection = await measured.connect()
    try:
        for _ in range(_LOOKS):
            [(found, last)] = await connection.fetch(_OUTCOMES)
            if found >= jobs:
                break
            await asyncio.sleep(_LOOK_SECONDS)
        return found, (last or since) - since
    finally:
        await connection.close()


async def wal_position(measured: MeasuredCluster) -> int:
    """Bytes of write-ahead log so far."""
    connection = await measured.connect()
    try:
        return int(await connection.fetchval("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn"))
    finally:
        await connection.close()


async def empty(measured: MeasuredCluster) -> None:
    """An empty table and no checkpoint pending, for the next run."""
    connection = await measured.connect()
    try:
        await connection.execute("TRUNCATE job, attempt")
        await connection.execute("CHECKPOINT")
    finally:
        await connection.close()


def one_drain(measured: MeasuredCluster, jobs: int, handler: Callable[..., Any] = noop) -> dict[str, Any]:
    """One run on running agents."""
    measured.signal_agents(signal.SIGSTOP)
    submitted = asyncio.run(submit(measured, jobs, handler))
    before, wal_before = measured.cpu_seconds(), asyncio.run(wal_position(measured))
    released = time.time()
    measured.signal_agents(signal.SIGCONT)
    asyncio.run(wait_drained(measured))
    after = measured.cpu_seconds()
    found, seconds = asyncio.run(outcomes(measured, jobs, released))
    wal_bytes = asyncio.run(wal_position(measured)) - wal_before
    asyncio.run(empty(measured))
    cpu = {name: round(after[name] - before[name], 2) for name in after}
    return {
        "jobs_per_second": jobs / seconds,
        "submit_many_per_second": submitted,
        "outcomes_in_master": found,
        "wal_bytes_per_job": wal_bytes / jobs,
        "cpu_seconds": cpu,
    }


def one_floor(measured: MeasuredCluster, what: str, jobs: int) -> dict[str, Any]:
    """One run of the floor, or of the raw COPY."""
    before = measured.cpu_seconds()
    found = floor.run(measured, what, jobs)
    after = measured.cpu_seconds()
    asyncio.run(empty(measured))
    cpu = {
        "loop": found["cpu_seconds"],
        **{name: round(after[name] - before[name], 2) for name in ("postgres", "store")},
    }
    return {"jobs_per_second": found["jobs_per_second"], "cpu_seconds": cpu}


def case(*, jobs: int, runs: int, processes: int, buckets: int, work: str = "noop") -> dict[str, Any]:
    """Medians of one case: ours, floor and raw COPY in turns."""
    agents = {"default": {"buckets": {**MEDIUM_ONLY, "medium": buckets}, "processes": processes}}
    kinds: dict[str, list[dict[str, Any]]] = {"ours": [], "floor": [], "raw_copy": []}
    with measured_cluster({"agents": agents}) as measured:
        measured.start_agent()
        servers = asyncio.run(measured.described())
        for number in range(runs + 1):  # the first is the warm-up
            share = jobs if number else max(jobs // 10, 1000)
            ours = one_drain(measured, share, _WORK[work])
            assert ours["outcomes_in_master"] == share, ours
            turn = {"ours": ours, **{what: one_floor(measured, what, share) for what in ("floor", "raw_copy")}}
            line = ", ".join(f"{kind} {found['jobs_per_second']:,.0f}/s" for kind, found in turn.items())
            progress(f"{'run ' + str(number) if number else 'warm-up'}: {line}")
            if number:
                for kind, found in turn.items():
                    kinds[kind].append(found)
    rates = {kind: [found["jobs_per_second"] for found in all_runs] for kind, all_runs in kinds.items()}
    shares = [mine / bare for mine, bare in zip(rates["ours"], rates["floor"], strict=True)]
    return {
        "jobs": jobs,
        "outcomes_in_master": kinds["ours"][-1]["outcomes_in_master"],
        "jobs_per_second": median(rates["ours"]),
        "floor_jobs_per_second": median(rates["floor"]),
        "raw_copy_rows_per_second": median(rates["raw_copy"]),
        "share_of_floor": round(median(shares), 3),
        "floor_share_of_raw_copy": round(median(rates["floor"]) / median(rates["raw_copy"]), 3),
        "work": work,
        "processes": processes,
        "buckets": buckets,
        "spread": {kind: summary(values) for kind, values in rates.items()},
        "cpu_seconds": {kind: all_runs[-1]["cpu_seconds"] for kind, all_runs in kinds.items()},
        "wal_bytes_per_job": round(median([found["wal_bytes_per_job"] for found in kinds["ours"]])),
        "submit_many_per_second": summary([found["submit_many_per_second"] for found in kinds["ours"]]),
        "servers": servers,
        "settings": {"durability": "store", "argument_bytes": 100, "outcome": "kept in the master"},
    }


@click.command()
@click.option("--jobs", default=200_000, show_default=True)
@click.option("--runs", default=5, show_default=True)
@click.option("--processes", default=1, show_default=True)
@click.option("--buckets", default=5, show_default=True)
@click.option("--work", type=click.Choice(list(_WORK)), default="noop", show_default=True)
@click.option("--cases", is_flag=True, help="Also no-op and 1 ms jobs with 1 and 2 processes and 1, 5, 20 buckets.")
@output_options
def main(jobs: int, runs: int, processes: int, buckets: int, work: str, cases: bool, as_json: bool, save: bool) -> None:
    """Jobs a second from the store to one recorded outcome each, as a share of the floor."""
    found = case(jobs=jobs, runs=runs, processes=processes, buckets=buckets, work=work)
    if cases:
        found["cases"] = []
        for kind in _WORK:
            for many, count in FULL_CASES:
                progress(f"case: {kind}, {many} processes, {count} buckets")
                one = case(jobs=jobs, runs=runs, processes=many, buckets=count, work=kind)
                found["cases"].append({key: value for key, value in one.items() if key != "servers"})
    show("drain", found, as_json=as_json, save=save)


if __name__ == "__main__":
    main()
