"""``python -m benchmarks.work``: kinds of work in each mode of handlers, from the store to one committed outcome each.

The jobs of a case are handed in while the agent is frozen, then the agent is let go. The rate runs from that moment to the
last outcome in the master (``changed_at``, on the same machine's clock); the outcomes are counted in the table. Celery's
prefork pool, with as many children as there are worker processes, takes turns with the cases of mode ``process`` on the same
servers: its rate counts jobs as they end, whether or not an outcome was stored by then.
"""

from __future__ import annotations

import asyncio
import signal
import time
from typing import Any

import click

from benchmarks.drain import empty, wait_drained
from benchmarks.support.measured_cluster import MEDIUM_ONLY, MeasuredCluster, measured_cluster
from benchmarks.support.report import output_options, progress, show
from benchmarks.support.work_handlers import MODES, NUMBERED, PLAIN, handlers
from jobmaster.wiring import open_cluster

WORKERS = 2
THREADS = 16
TEXT = {"arguments_16k": "x" * 16_300}
_LOOK_SECONDS = 0.02
_LOOKS = 500
_OUTCOMES = (
    "SELECT count(*) AS found, count(*) FILTER (WHERE state = 'FAILED') AS failed,"
    " extract(epoch FROM max(changed_at))::float8 AS last FROM job WHERE state IN ('SUCCEEDED', 'FAILED')"
)
JOBS = {
    "loop": {"cpu_1ms": 3000, "wait_10ms": 20_000, "arguments_16k": 20_000, "": 100_000},
    "thread": {"cpu_1ms": 3000, "wait_10ms": 5000, "arguments_16k": 10_000, "": 50_000},
    "process": {"cpu_1ms": 4000, "wait_10ms": 1500, "arguments_16k": 8000, "": 15_000},
}
"""Jobs of one run; some seconds each."""


async def _submit(measured: MeasuredCluster, kind: str, mode: str, jobs: int) -> None:
    fixed: dict[str, Any] = {"text": TEXT.get(kind, "x" * 89)}
    numbered = kind in NUMBERED
    options: Any = {"tags": ("blue", "green")} if kind == "tags" else {}
    async with await open_cluster(measured.settings, handlers) as cluster:
        calls = ({**fixed, "number": number} if numbered else fixed for number in range(jobs))
        done = await cluster.submit_many(calls, f"work.{kind}.{mode}", **options)
    assert done.submitted == jobs, done


async def _outcomes(measured: MeasuredCluster, jobs: int, since: float) -> tuple[int, int, float]:
    """Outcomes in the master, those of them that are failures, and seconds to the last."""
    connection = await measured.connect()
    try:
        for _ in range(_LOOKS):
            [(found, failed, last)] = await connection.fetch(_OUTCOMES)
            if found >= jobs:
                break
            await asyncio.sleep(_LOOK_SECONDS)
        return found, failed, (last or since) - since
    finally:
        await connection.close()


def one_run(measured: MeasuredCluster, kind: str, mode: str, jobs: int) -> dict[str, Any]:
    """One case once, on the running agent."""
    measured.signal_agents(signal.SIGSTOP)
    asyncio.run(_submit(measured, kind, mode, jobs))
    before = measured.cpu_seconds()
    released = time.time()
    measured.signal_agents(signal.SIGCONT)
    asyncio.run(wait_drained(measured))
    after = measured.cpu_seconds()
    found, failed, seconds = asyncio.run(_outcomes(measured, jobs, released))
    assert found == jobs, (kind, mode, found, jobs)
    asyncio.run(empty(measured))
    cpu = {name: round((after[name] - before[name]) / jobs * 1e6, 1) for name in after}
    return {"jobs_per_second": jobs / seconds, "failed": failed, "cpu_us_per_job": cpu}


@click.command()
@click.option("--runs", default=3, show_default=True)
@click.option("--modes", default=",".join(MODES), show_default=True)
@click.option("--kinds", default=",".join(PLAIN), show_default=True)
@click.option("--scale", default=1.0, show_default=True, help="Of the number of jobs.")
@output_options
def main(runs: int, modes: str, kinds: str, scale: float, as_json: bool, save: bool) -> None:
    """Jobs a second by kind of work and mode."""
    agents = {
        "default": {
            "buckets": {**MEDIUM_ONLY, "medium": 5}, "processes": 1, "isolated_processes": WORKERS, "threads": THREADS,
        }
    }  # fmt: skip
    overrides = {"agents": agents, "handlers": ["benchmarks.support.work_handlers"]}
    cases: dict[str, dict[str, Any]] = {}
    with measured_cluster(overrides, tcp=True) as measured:
        measured.start_agent()
        servers = asyncio.run(measured.described())
        for number in range(runs + 1):
            for mode in modes.split(","):
                for kind in kinds.split(","):
                    jobs = int((JOBS[mode].get(kind) or JOBS[mode][""]) * scale)
                    found = one_run(measured, kind, mode, jobs if number else max(jobs // 10, 100))
                    progress(
                        f"{number or 'warm-up'} {mode} {kind}: {found['jobs_per_second']:,.0f}/s {found['cpu_us_per_job']}"
                    )
                    if number:
                        cases.setdefault(f"{mode} {kind}", {}).setdefault("all", []).append(found)
    show("work", {"cases": cases, "servers": servers}, as_json=as_json, save=save)


if __name__ == "__main__":
    main()
