"""``python -m benchmarks.flow``: what limits, batches, workflows and tenants cost. One function for each figure."""

from __future__ import annotations

import asyncio
import signal
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import click
import redis.asyncio
import uvloop

from benchmarks.drain import TEXT
from benchmarks.submit import empty_buckets
from benchmarks.support import limited_handlers
from benchmarks.support.handlers import handlers, noop
from benchmarks.support.measured_cluster import MEDIUM_ONLY, MeasuredCluster, measured_cluster
from benchmarks.support.report import output_options, progress, show
from benchmarks.support.tenant_waits import tenant_wait_ratio
from jobmaster.client.cluster import Cluster
from jobmaster.client.workflows.definition import chain
from jobmaster.handlers import call
from jobmaster.model.flow.batch import BatchState, range_end
from jobmaster.model.flow.workflow import WorkflowState
from jobmaster.wiring import open_cluster

CHAIN_STEPS = 10
_PAIRS = 3
_LEASES = {"lease": "600s", "renew": "10s"}
"""A stopped agent keeps its buckets."""
_TIMES = """
SELECT extract(epoch FROM max(changed_at))::float8 AS last,
       (SELECT extract(epoch FROM ended_at)::float8 FROM batch WHERE id = $1) AS ended,
       (SELECT extract(epoch FROM changed_at)::float8 FROM job WHERE id = $3) AS called
FROM job WHERE id > $1 AND id <= $2
"""
_LOOK_SECONDS = 0.1


async def chain_ms(cluster: Cluster, rounds: int) -> dict[str, float]:
    """Milliseconds from the start of a chain of 10 steps to the read that finds it ended, one chain after another."""
    flow = chain(*(call(noop) for _ in range(CHAIN_STEPS)))
    took = []
    for _ in range(rounds + 5):  # the first ones warm up
        began = time.perf_counter()
        ended = await cluster.workflows.wait(await cluster.workflows.start("bench", flow), timeout=60)
        took.append((time.perf_counter() - began) * 1000)
        assert ended.state is WorkflowState.SUCCEEDED
        await asyncio.sleep(0.02)
    ordered = sorted(took[5:])
    return {
        "chain_ms": round(statistics.median(ordered), 1),
        "chain_p99_ms": round(ordered[min(int(len(ordered) * 0.99), len(ordered) - 1)], 1),
    }


async def batch_children(cluster: Cluster, measured: MeasuredCluster, children: int) -> dict[str, float]:
    """Jobs of a batch submitted a second, and as a share of ``submit_many``, in pairs of runs that begin with empty buckets.
    The agent that owns the buckets is stopped."""
    rates, shares = [], []
    driver = redis.asyncio.from_url(measured.url)
    measured.signal_agents(signal.SIGSTOP)
    try:
        for pair in range(_PAIRS + 1):  # the first one warms up
            batch = await cluster.batch("bench").__aenter__()
            submits = [cluster.submit_many, batch.submit_many]
            took = {}
            for submit in submits if pair % 2 else reversed(submits):
                await empty_buckets(cluster, driver)
                began = time.perf_counter()
                await submit(({"text": TEXT} for _ in range(children)), noop)
                took[submit] = time.perf_counter() - began
            plain, of_batch = (took[submit] for submit in submits)
            rates.append(children / of_batch)
            shares.append(plain / of_batch)
        await empty_buckets(cluster, driver)
    finally:
        measured.signal_agents(signal.SIGCONT)
        await driver.aclose()
    return {
        "batch_children": round(statistics.median(rates[1:])),
        "batch_children_share": round(statistics.median(shares[1:]), 3),
    }


async def batch_callback_seconds(cluster: Cluster, measured: MeasuredCluster, children: int) -> dict[str, float]:
    """Seconds from the last outcome of a batch to its end, and to the outcome of its callback, by the master's clock."""
    async with cluster.batch("bench", on_complete=call(noop)) as batch:
        await batch.submit_many(({"text": TEXT} for _ in range(children)), noop)
    view = await batch.wait()
    assert view.state is BatchState.SUCCEEDED, view
    callback = UUID(view.callbacks["complete"])
    await cluster.wait(callback, timeout=60)
    connection = await measured.connect()
    try:
        times = await connection.fetchrow(_TIMES, batch.id, UUID(bytes=range_end(batch.id_bytes)), callback)
    finally:
        await connection.close()
    assert times is not None
    return {
        "batch_end_seconds": round(times["ended"] - times["last"], 3),
        "batch_callback_seconds": round(times["called"] - times["last"], 3),
    }


def limited_starts(jobs: int, agents: int) -> dict[str, Any]:
    """Starts a second of jobs under one limit of 100 permits, in all agents together, how many ran at once, and the same jobs
    without a limit: that is the floor. Processor time is comparable on a busy machine, rates are not."""
    limited = _starts(jobs, agents, limited_handlers.limited)
    most = limited.pop("most_at_once")
    assert most <= limited_handlers.RUNNING, f"{most} jobs ran at once under a limit of {limited_handlers.RUNNING}"
    floor = _starts(jobs, agents, limited_handlers.unlimited)
    return {
        "limited_starts_per_second": limited["starts_per_second"],
        "limited_most_at_once": most,
        "limited_jobs": jobs,
        "limited_agents": agents,
        "limited_cpu_seconds": limited["cpu_seconds"],
        "unlimited_starts_per_second": floor["starts_per_second"],
        "unlimited_cpu_seconds": floor["cpu_seconds"],
        "limited_share_of_floor": round(limited["starts_per_second"] / floor["starts_per_second"], 3),
        "limited_cpu_ratio": round(sum(limited["cpu_seconds"].values()) / sum(floor["cpu_seconds"].values()), 2),
        "limited_servers": limited["servers"],
    }


def _starts(jobs: int, agents: int, handler: Callable[..., Any]) -> dict[str, Any]:
    """Starts a second, and how many ran at once.

    The jobs lie in the buckets of all agents before the first of these is let go. Every run records its begin and its end.
    """
    kind = {"buckets": {**MEDIUM_ONLY, "medium": 1}, "processes": agents}
    overrides = {
        "agents": {"default": kind},
        "handlers": ["benchmarks.support.limited_handlers"],
        "leases": _LEASES,
    }
    with measured_cluster(overrides) as measured:
        measured.start_agent()
        directory = measured.directory / "runs"
        directory.mkdir()
        asyncio.run(_wait_for_buckets(measured, agents))
        measured.signal_agents(signal.SIGSTOP)
        asyncio.run(_submit_all(measured, jobs, directory, handler))
        before = measured.cpu_seconds()
        measured.signal_agents(signal.SIGCONT)
        asyncio.run(_wait_for_ends(measured, jobs))
        after = measured.cpu_seconds()
        found = limited_handlers.runs(directory)
        servers = asyncio.run(measured.described())
        measured.kill_agents()
    assert len(found) == jobs, f"{len(found)} runs of {jobs} jobs"
    begins = sorted(began for began, _ in found)
    return {
        "starts_per_second": round(jobs / ((begins[-1] - begins[0]) / 1e9)),
        "most_at_once": limited_handlers.most_at_once(found),
        "cpu_seconds": {name: round(after[name] - before[name], 2) for name in after},
        "servers": servers,
    }


async def _wait_for_buckets(measured: MeasuredCluster, agents: int) -> None:
    connection = await measured.connect()
    try:
        while await connection.fetchval("SELECT count(*) FROM bucket WHERE state = 'ACTIVE'") < agents:  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_SECONDS)
    finally:
        await connection.close()


async def _submit_all(measured: MeasuredCluster, jobs: int, directory: Path, handler: Callable[..., Any]) -> None:
    async with await open_cluster(measured.settings, limited_handlers.handlers) as cluster:
        done = await cluster.submit_many(({"directory": str(directory)} for _ in range(jobs)), handler, on_full="raise")
    assert done.submitted == jobs, done


async def _wait_for_ends(measured: MeasuredCluster, jobs: int) -> None:
    connection = await measured.connect()
    try:
        while await connection.fetchval("SELECT count(*) FROM job WHERE state = 'SUCCEEDED'") < jobs:  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_SECONDS)
    finally:
        await connection.close()


@click.command()
@click.option("--rounds", type=click.IntRange(1), default=100, show_default=True, help="Chains, one after another.")
@click.option(
    "--children", type=click.IntRange(0), default=1_000_000, show_default=True, help="Jobs of a batch; 0: no batch."
)
@click.option(
    "--tenant-seconds", type=click.FloatRange(0), default=30, show_default=True, help="Load of tenants; 0: none."
)
@click.option("--tenant-pairs", type=click.IntRange(1), default=3, show_default=True, help="Pairs of these loads.")
@click.option(
    "--limited-jobs", type=click.IntRange(0), default=100_000, show_default=True, help="Jobs under one limit; 0: none."
)
@click.option("--limited-agents", type=click.IntRange(1), default=20, show_default=True, help="Agents that run them.")
@output_options
def main(
    rounds: int,
    children: int,
    tenant_seconds: float,
    tenant_pairs: int,
    limited_jobs: int,
    limited_agents: int,
    as_json: bool,
    save: bool,
) -> None:
    """Measure workflows at light load, and batches, on one agent; tenants; and starts under a limit on many agents."""

    async def measure() -> dict[str, float]:
        found: dict[str, float] = {}
        with measured_cluster() as measured:
            measured.start_agent()
            progress("a chain of 10 steps")
            async with await open_cluster(measured.settings, handlers) as cluster:
                found |= await chain_ms(cluster, rounds)
        if children:
            with measured_cluster({"leases": _LEASES, "agents": {"default": {"buckets": MEDIUM_ONLY}}}) as measured:
                measured.start_agent()
                async with await open_cluster(measured.settings, handlers) as cluster:
                    progress(f"a batch of {children} jobs, and submit_many, in pairs")
                    found |= await batch_children(cluster, measured, children)
                    progress(f"the callback of a batch of {children} jobs")
                    found |= await batch_callback_seconds(cluster, measured, children)
        return found

    found: dict[str, Any] = uvloop.run(measure())
    if tenant_seconds:
        progress(f"999 tenants, without and with a flood of one more, in {tenant_pairs} pairs")
        found |= tenant_wait_ratio(tenant_seconds, tenant_pairs)
    if limited_jobs:
        progress(f"{limited_jobs} jobs under one limit, and without it, {limited_agents} agents")
        found |= limited_starts(limited_jobs, limited_agents)
    show("flow", {"rounds": rounds, "children": children, **found}, as_json=as_json, save=save)


if __name__ == "__main__":
    main()
