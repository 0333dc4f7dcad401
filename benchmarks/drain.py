"""How fast jobs get from the store to one recorded outcome each: submitted first, then drained by fresh agents.

The rate runs from the first to the last outcome committed in the master (``changed_at`` of the rows, the master's clock),
so the start of processes does not count, and every counted job is durable (``synchronous_commit`` is on).
"""

from __future__ import annotations

import asyncio
import signal
import time
from typing import Any

import asyncpg

from benchmarks.handlers import handlers, payload
from benchmarks.rig import Bench, bench, summary
from jobmaster.settings.model import ClusterSettings
from jobmaster.wiring import open_cluster

TEXT = "x" * 80
_POLL_SECONDS = 0.1


async def submit(settings: ClusterSettings, jobs: int) -> float:
    """Submit in bulk; jobs per second."""
    async with await open_cluster(settings, handlers) as cluster:
        began = time.perf_counter()
        done = await cluster.submit_many((payload, {"text": TEXT}) for _ in range(jobs))
        seconds = time.perf_counter() - began
    assert done.submitted == jobs, done
    return jobs / seconds


async def drained(rig: Bench, jobs: int) -> float:
    """Wait until all are over; jobs per second between the first and the last commit."""
    connection = await asyncpg.connect(
        rig.servers.dsn, server_settings={"search_path": f'"{rig.settings.schema_name()}"'}
    )
    try:
        while await connection.fetchval("SELECT count(*) FROM job WHERE state = 'SUCCEEDED'") < jobs:  # noqa: ASYNC110
            await asyncio.sleep(_POLL_SECONDS)  # the rate is read from the rows, not from this clock
        seconds = await connection.fetchval(
            "SELECT extract(epoch FROM max(changed_at) - min(changed_at))::float8 FROM job"
        )
        await connection.execute("TRUNCATE job, attempt")
        return jobs / float(seconds)
    finally:
        await connection.close()


def one_run(jobs: int, processes: int, buckets: int) -> dict[str, Any]:
    """One fresh cluster, one drain."""
    counts = {"critical": 0, "high": 0, "low": 0, "very_low": 0, "medium": buckets}
    with bench({"agents": {"default": {"buckets": counts}}}) as rig:
        # Buckets live as long as their agent: it is frozen while jobs are put in (well within its lease), then thawed.
        for _ in range(processes):
            rig.start_agent()
        asyncio.run(submit(rig.settings, 2000))
        asyncio.run(drained(rig, 2000))
        before = rig.cpu_seconds()
        rig.signal_agents(signal.SIGSTOP)
        submitted = asyncio.run(submit(rig.settings, jobs))
        rig.signal_agents(signal.SIGCONT)
        rate = asyncio.run(drained(rig, jobs))
        after = rig.cpu_seconds()
    cpu = {name: round(after[name] - before[name], 2) for name in after}
    return {"jobs_per_second": rate, "submitted_per_second": submitted, "cpu_seconds": cpu}


def run(*, jobs: int, runs: int, processes: int, buckets: int) -> dict[str, Any]:
    """Medians over fresh clusters."""
    found = [one_run(jobs, processes, buckets) for _ in range(runs)]
    return {
        "jobs": jobs,
        "processes": processes,
        "buckets": buckets,
        "drain_jobs_per_second": summary([each["jobs_per_second"] for each in found]),
        "submit_many_jobs_per_second": summary([each["submitted_per_second"] for each in found]),
        "cpu_seconds": found[-1]["cpu_seconds"],
    }
