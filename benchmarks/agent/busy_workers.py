"""``python -m benchmarks.agent.busy_workers``: how long jobs on the loop wait while worker processes compute.

Each core has a worker process, and the workers have more jobs of one millisecond of processor time than they can do. Beside
them coroutines are submitted at 100 a second in another priority, and each records its own start. The same is measured on the
same agent before the work.
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

import click
import uvloop

from benchmarks.latency import WARM_UP, light, middle, recorded
from benchmarks.support.handlers import handlers as on_loop
from benchmarks.support.measured_cluster import HANDLERS, MeasuredCluster, measured_cluster
from benchmarks.support.plain_work import text_of
from benchmarks.support.report import output_options, progress, show
from benchmarks.support.work_handlers import handlers as work
from benchmarks.work import cpu_jobs_allowed
from jobmaster.wiring import open_cluster

PER_SECOND = 100
WORK = "work.cpu_1ms.process"
_DONE = "SELECT count(*) FROM job WHERE handler = $1 AND state = 'SUCCEEDED'"
_LOOK_SECONDS = 0.1


async def measure(measured: MeasuredCluster, seconds: float, runs: int, workers: int) -> dict[str, Any]:
    """Waits alone and beside the work.

    Raises:
        RuntimeError: the work ended before the measurement did.
    """
    count = PER_SECOND * int(seconds) + WARM_UP
    allowed = cpu_jobs_allowed(workers)
    jobs = int(allowed * (runs + 2) * count / PER_SECOND)
    connection = await measured.connect()
    async with await open_cluster(measured.settings, on_loop) as cluster:
        alone = [await recorded(measured, cluster, await light(cluster, count, PER_SECOND)) for _ in range(runs)]
        progress(f"alone: {alone}")
        async with await open_cluster(measured.settings, work) as producer:
            await producer.submit_many(({"text": text_of("cpu_1ms")} for _ in range(jobs)), WORK, priority="low")
        while not await connection.fetchval(_DONE, WORK):  # noqa: ASYNC110 - read from the rows
            await asyncio.sleep(_LOOK_SECONDS)
        before, since = await connection.fetchval(_DONE, WORK), time.perf_counter()
        beside = [await recorded(measured, cluster, await light(cluster, count, PER_SECOND)) for _ in range(runs)]
        done = await connection.fetchval(_DONE, WORK)
        passed = time.perf_counter() - since
    await connection.close()
    if done >= jobs:
        raise RuntimeError(f"all {jobs:,} jobs of the workers ended before the measurement did: give fewer --seconds")
    return {
        "alone": middle(alone),
        "beside_busy_workers": middle(beside),
        "workers": workers,
        "work_jobs_per_second": round((done - before) / passed),
        "work_share_of_bare": round((done - before) / passed / allowed, 3),
        "jobs_per_second": PER_SECOND,
    }


@click.command()
@click.option("--seconds", default=10.0, show_default=True, help="Of one run.")
@click.option("--runs", default=3, show_default=True)
@click.option("--workers", default=os.cpu_count() or 1, show_default="one for each core")
@output_options
def main(seconds: float, runs: int, workers: int, as_json: bool, save: bool) -> None:
    """Milliseconds from submit to start of jobs on the loop, alone and while all cores compute in worker processes."""
    overrides = {
        "agents": {"default": {"processes": 1, "isolated_processes": workers}},
        "handlers": [HANDLERS, "benchmarks.support.work_handlers"],
    }
    with measured_cluster(overrides) as measured:
        measured.start_agent()
        show("busy_workers", uvloop.run(measure(measured, seconds, runs, workers)), as_json=as_json, save=save)
        measured.kill_agents()


if __name__ == "__main__":
    main()
