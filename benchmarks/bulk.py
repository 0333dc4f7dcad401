"""``python -m benchmarks.bulk``: a bulk retry of many failed jobs, alone and beside a drain.

The failed jobs have the lane ``unserved``, so that their retries wait in the master and start no work: what is measured is
the operation. First one operation runs to its end on idle agents. Then drains run in pairs, one alone and one while an
operation is worked on (which is cancelled afterwards); ``drain_ratio`` is the median of the rates of the second by those of
the first. The leader is the agent that drains.
"""

from __future__ import annotations

import asyncio
import signal
import time
from typing import Any

import click

from benchmarks.drain import submit, wait_drained
from benchmarks.support.measured_cluster import MEDIUM_ONLY, MeasuredCluster, measured_cluster
from benchmarks.support.report import median, output_options, progress, show, summary
from jobmaster.model.flow.bulk_operation import BulkState, BulkView
from jobmaster.wiring import open_cluster

_FAILED = """
INSERT INTO job (id, state, priority, lane, handler, token, args, headers, error)
SELECT (substr(uuid_floor(clock_timestamp())::text, 1, 14) || '7' || substr(digest, 1, 3) || '-8' || substr(digest, 4, 3)
        || '-' || substr(digest, 7, 12))::uuid,
       'FAILED', 3, 'unserved', 'bench.noop', 1, convert_to('{"text":"' || repeat('x', 89) || '"}', 'UTF8'),
       convert_to('{"tags":["' || $2::text || '"]}', 'UTF8'), '{"type":"E","message":"m","reason":"error"}'
FROM (SELECT md5(n || $2::text) AS digest FROM generate_series(1, $1::integer) AS n) AS made
"""
_DRAINED = (
    "SELECT count(*) AS found, extract(epoch FROM max(changed_at))::float8 AS last FROM job "
    "WHERE state = 'SUCCEEDED' AND changed_at > to_timestamp($1)"
)
_LOOK_SECONDS = 0.05
_LEASES = {"lease": "600s", "renew": "10s"}
"""The agent is frozen while the jobs of a drain are submitted."""


async def fill(measured: MeasuredCluster, jobs: int, tag: str) -> None:
    """Failed jobs."""
    connection = await measured.connect()
    try:
        await connection.execute(_FAILED, jobs, tag, timeout=3600)
        await connection.execute("CHECKPOINT")
        await connection.execute("ANALYZE job", timeout=600)
    finally:
        await connection.close()


async def whole_operation(measured: MeasuredCluster, tag: str) -> tuple[BulkView, float]:
    """One operation to its end, and its seconds."""
    async with await open_cluster(measured.settings) as cluster:
        began = time.perf_counter()
        view = await cluster.bulk.wait(await cluster.bulk.start("retry", tag=tag))
        return view, time.perf_counter() - began


async def begun(measured: MeasuredCluster, tag: str) -> BulkView:
    """An operation whose pages have their full size."""
    async with await open_cluster(measured.settings) as cluster:
        view = await cluster.bulk.start("retry", tag=tag)
        while view.changed < 20_000 and not view.state.final:
            await asyncio.sleep(_LOOK_SECONDS)
            view = await cluster.bulk.get(view)
        return view


async def ended(measured: MeasuredCluster, view: BulkView) -> BulkView:
    """The operation, cancelled."""
    async with await open_cluster(measured.settings) as cluster:
        return await cluster.bulk.cancel(view)


async def drained(measured: MeasuredCluster, since: float) -> tuple[int, float]:
    """Outcomes since a moment, and seconds until the last one."""
    connection = await measured.connect()
    try:
        [(found, last)] = await connection.fetch(_DRAINED, since, timeout=600)
        return found, last - since
    finally:
        await connection.close()


def drain_rate(measured: MeasuredCluster, jobs: int) -> float:
    """Jobs a second from the release of the agents to the last outcome."""
    measured.signal_agents(signal.SIGSTOP)
    asyncio.run(submit(measured, jobs))
    released = time.time()
    measured.signal_agents(signal.SIGCONT)
    asyncio.run(wait_drained(measured))
    found, seconds = asyncio.run(drained(measured, released))
    assert found == jobs, (found, jobs)
    return jobs / seconds


def beside_a_drain(measured: MeasuredCluster, jobs: int) -> tuple[float, int]:
    """The rate of a drain while an operation is worked on, and how many jobs the operation has run again meanwhile."""
    view = asyncio.run(begun(measured, "beside"))
    assert not view.state.final, "there are not enough failed jobs"
    rate = drain_rate(measured, jobs)
    after = asyncio.run(ended(measured, view))
    assert after.state is BulkState.CANCELLED, "the operation ended before the drain: give more --jobs"
    return rate, after.changed - view.changed


def measure(jobs: int, drain_jobs: int, runs: int) -> dict[str, Any]:
    """Everything on one cluster."""
    agents = {"default": {"buckets": {**MEDIUM_ONLY, "medium": 5}}}
    with measured_cluster({"agents": agents, "leases": _LEASES}) as measured:
        asyncio.run(fill(measured, jobs, "alone"))
        progress(f"filled {jobs:,} failed jobs")
        measured.start_agent()
        before = measured.cpu_seconds()
        view, seconds = asyncio.run(whole_operation(measured, "alone"))
        after = measured.cpu_seconds()
        assert view.changed == jobs, view
        progress(f"alone: {jobs / seconds:,.0f} jobs/s, {seconds:.1f} s")
        if runs:
            asyncio.run(fill(measured, jobs, "beside"))
            drain_rate(measured, max(drain_jobs // 10, 1000))
        alone, beside, retried = [], [], []
        for number in range(runs):
            alone.append(drain_rate(measured, drain_jobs))
            rate, again = beside_a_drain(measured, drain_jobs)
            beside.append(rate)
            retried.append(again)
            progress(f"pair {number + 1}: {alone[-1]:,.0f}/s alone, {rate:,.0f}/s beside, {again:,} jobs run again")
        servers = asyncio.run(measured.described())
    ratios = [mine / other for mine, other in zip(beside, alone, strict=True)]
    pairs = (
        {}
        if not ratios
        else {
            "drain_ratio": round(median(ratios), 3),
            "retried_during_a_drain": retried,
            "spread": {"drain_alone": summary(alone), "drain_beside": summary(beside)},
        }
    )
    return {
        "jobs": jobs,
        "seconds": round(seconds, 1),
        "jobs_per_second": round(jobs / seconds),
        "cpu_seconds": {name: round(after[name] - before[name], 1) for name in after},
        "drain_jobs": drain_jobs,
        **pairs,
        "servers": servers,
    }


@click.command()
@click.option("--jobs", default=1_000_000, show_default=True, help="Failed jobs of each operation.")
@click.option("--drain-jobs", default=500_000, show_default=True)
@click.option("--runs", default=3, show_default=True, help="Pairs of drains; 0: the operation alone.")
@output_options
def main(jobs: int, drain_jobs: int, runs: int, as_json: bool, save: bool) -> None:
    """How long a bulk retry takes, and what it costs a drain."""
    show("bulk", measure(jobs, drain_jobs, runs), as_json=as_json, save=save)


if __name__ == "__main__":
    main()
