"""``python -m benchmarks.work``: kinds of work in each mode of handlers, from the store to one committed outcome each.

The jobs of a case are handed in while the agent is frozen, then the agent is let go. The rate runs from that moment to the
last outcome in the master (``changed_at``, on the same machine's clock); the outcomes are counted in the table. Celery's
prefork pool, with as many children as there are worker processes, takes turns with the cases of mode ``process`` on the same
servers: its rate counts jobs as they end, whether or not an outcome was stored by then.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

import click

from benchmarks.drain import empty, wait_drained
from benchmarks.peers.catalogue import PEERS
from benchmarks.peers.environments import DEFAULT, Environment, Unusable
from benchmarks.peers.rival import Rival
from benchmarks.support.measured_cluster import MEDIUM_ONLY, MeasuredCluster, measured_cluster
from benchmarks.support.plain_work import text_of
from benchmarks.support.report import median, output_options, progress, show, summary
from benchmarks.support.work_handlers import MODES, NUMBERED, PLAIN, handlers
from jobmaster.wiring import open_cluster

WORKERS = 2
THREADS = 16
_BARE_SECONDS = 2.0
_LOOK_SECONDS = 0.02
_LOOKS = 500
_OUTCOMES = (
    "SELECT count(*) AS found, count(*) FILTER (WHERE state = 'FAILED') AS failed,"
    " extract(epoch FROM max(changed_at))::float8 AS last FROM job WHERE state IN ('SUCCEEDED', 'FAILED')"
)
_LARGE = {"arguments_128k": 2000, "results_16k": 8000, "results_128k": 1000}
JOBS = {
    "loop": {**_LARGE, "cpu_1ms": 3000, "wait_10ms": 20_000, "arguments_16k": 20_000, "": 100_000},
    "thread": {**_LARGE, "cpu_1ms": 3000, "wait_10ms": 5000, "arguments_16k": 10_000, "": 50_000},
    "process": {**_LARGE, "cpu_1ms": 4000, "wait_10ms": 1500, "arguments_16k": 8000, "": 15_000},
}
"""Jobs of one run; some seconds each."""


async def _submit(measured: MeasuredCluster, kind: str, mode: str, jobs: int) -> None:
    fixed: dict[str, Any] = {"text": text_of(kind)}
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


def _spin(together: Any, rates: Any) -> None:
    together.wait()
    began, done = time.monotonic(), 0
    while time.monotonic() - began < _BARE_SECONDS:
        PLAIN["cpu_1ms"]()
        done += 1
    rates.put(done / (time.monotonic() - began))


def cpu_jobs_allowed(workers: int) -> float:
    """Jobs of one millisecond of processor time a second that the cores allow: a loop in as many processes as there are
    workers, and nothing else."""
    context = multiprocessing.get_context("spawn")
    rates, together = context.Queue(), context.Barrier(workers)
    processes = [context.Process(target=_spin, args=(together, rates)) for _ in range(workers)]
    for process in processes:
        process.start()
    found: list[float] = [rates.get() for _ in processes]
    for process in processes:
        process.join()
    return sum(found)


def celery(measured: MeasuredCluster, cache: Path) -> Rival | None:
    """Celery, ready to run on the same servers."""
    environment = Environment(PEERS["celery"], cache.expanduser())
    try:
        environment.install()
    except Unusable as error:
        progress(str(error))
        return None
    return Rival(measured, environment)


def compared(found: dict[str, list[dict[str, Any]]], bares: list[float], peers: list[float]) -> dict[str, Any]:
    """Medians of each case, and the ratios within one round."""
    rates = {case: [one["jobs_per_second"] for one in runs] for case, runs in found.items()}
    report: dict[str, Any] = {
        "cases": {
            case: {
                "jobs_per_second": median(rates[case]),
                "spread": summary(rates[case]),
                "cpu_us_per_job": runs[-1]["cpu_us_per_job"],
                "failed": runs[-1]["failed"],
            }
            for case, runs in found.items()
        },
        "bare_cpu_1ms_per_second": median(bares),
    }
    if ours := rates.get("process cpu_1ms"):
        report["share_of_bare"] = round(median([one / most for one, most in zip(ours, bares, strict=True)]), 3)
    if (ours := rates.get("process noop")) and len(peers) == len(ours):
        report["celery_noop_per_second"] = median(peers)
        report["ratio_to_celery"] = round(median([one / other for one, other in zip(ours, peers, strict=True)]), 2)
    return report


@click.command()
@click.option("--runs", default=3, show_default=True)
@click.option("--modes", default=",".join(MODES), show_default=True)
@click.option("--kinds", default=",".join(PLAIN), show_default=True)
@click.option("--scale", default=1.0, show_default=True, help="Of the number of jobs.")
@click.option("--cache", type=click.Path(path_type=Path, file_okay=False), default=DEFAULT, show_default=True)
@output_options
def main(runs: int, modes: str, kinds: str, scale: float, cache: Path, as_json: bool, save: bool) -> None:
    """Jobs a second by kind of work and mode, Celery's prefork pool beside mode process."""
    agents = {
        "default": {
            "buckets": {**MEDIUM_ONLY, "medium": 5}, "processes": 1, "isolated_processes": WORKERS, "threads": THREADS,
        }
    }  # fmt: skip
    overrides = {"agents": agents, "handlers": ["benchmarks.support.work_handlers"]}
    found: dict[str, list[dict[str, Any]]] = {}
    bares: list[float] = []
    peers: list[float] = []
    with measured_cluster(overrides, tcp=True) as measured:
        rival = celery(measured, cache)
        measured.start_agent()
        servers = asyncio.run(measured.described())
        for number in range(runs + 1):
            for mode in modes.split(","):
                for kind in kinds.split(","):
                    jobs = int((JOBS[mode].get(kind) or JOBS[mode][""]) * scale)
                    one = one_run(measured, kind, mode, jobs if number else max(jobs // 10, 100))
                    rate, cpu = one["jobs_per_second"], one["cpu_us_per_job"]
                    progress(f"{number or 'warm-up'} {mode} {kind}: {rate:,.0f}/s {cpu}")
                    if number:
                        found.setdefault(f"{mode} {kind}", []).append(one)
            if number:
                bares.append(cpu_jobs_allowed(WORKERS))
                share = int(PEERS["celery"].drain_jobs * WORKERS * scale)
                theirs = {} if rival is None else rival.attempt(partial(rival.queue_and_drain, WORKERS, share))
                peers += theirs.values()
                progress(f"{number} bare {bares[-1]:,.0f}/s, celery {theirs}")
    report = {**compared(found, bares, peers), "workers": WORKERS, "threads": THREADS, "servers": servers}
    if rival is not None:
        report["celery"] = {"failure": rival.failure} if rival.failure else rival.described()
    show("work", report, as_json=as_json, save=save)


if __name__ == "__main__":
    main()
