"""``python -m benchmarks.agent.memory``: what processes and waiting jobs weigh.

The weight of a process is its unique set size (what would be free if it went), beside its resident set. The weight of a
buffered job is measured on a process whose slots are all busy with a handler that sleeps, at two numbers of claimed jobs.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import click

from benchmarks.drain import TEXT
from benchmarks.support.handlers import handlers, noop, sleep
from benchmarks.support.measured_cluster import MEDIUM_ONLY, MeasuredCluster, descendants, measured_cluster
from benchmarks.support.report import median, output_options, show, summary
from jobmaster.wiring import open_cluster

_SLOTS = 2
_SETTLE_SECONDS = 2.0


def weight(pid: int) -> dict[str, float]:
    """Megabytes (10^6 bytes) of a process: resident, proportional, unique."""
    sizes: dict[str, int] = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, value = line.split()[:2]
        sizes[name] = int(value) * 1024
    unique = sizes["Private_Clean:"] + sizes["Private_Dirty:"]
    return {"rss_mb": sizes["Rss:"] / 1e6, "pss_mb": sizes["Pss:"] / 1e6, "unique_mb": unique / 1e6}


async def _submit_waiting(measured: MeasuredCluster, jobs: int) -> None:
    """Jobs that keep the slots busy, then jobs that wait behind them."""
    async with await open_cluster(measured.settings, handlers) as cluster:
        await cluster.submit_many(({"seconds": 600.0} for _ in range(_SLOTS)), sleep)
        await cluster.submit_many(({"text": TEXT} for _ in range(jobs)), noop)


def _buffered(jobs: int) -> float:
    """Unique bytes of a process that has claimed so many jobs and runs none of them."""
    agent = {"buckets": {**MEDIUM_ONLY, "medium": 1}, "slots": _SLOTS, "bucket_buffer": jobs, "max_running": _SLOTS}
    with measured_cluster({"agents": {"default": agent}, "thresholds": {"persist_within": "600s"}}) as measured:
        measured.start_agent()
        child = descendants(measured.agents[0].pid)[1]
        asyncio.run(_submit_waiting(measured, jobs))
        time.sleep(_SETTLE_SECONDS + jobs / 50_000)
        return weight(child)["unique_mb"] * 1e6


def run(runs: int, jobs: int) -> dict[str, Any]:
    """Processes at rest, and the difference that buffered jobs make."""
    supervisors, children = [], []
    for _ in range(runs):
        with measured_cluster({"agents": {"default": {"buckets": {**MEDIUM_ONLY, "medium": 15}}}}) as measured:
            measured.start_agent()
            time.sleep(_SETTLE_SECONDS)
            supervisor, child = descendants(measured.agents[0].pid)[:2]
            supervisors.append(weight(supervisor))
            children.append(weight(child))
            servers = asyncio.run(measured.described())
    few = jobs // 10
    per_job = [(_buffered(jobs) - _buffered(few)) / (jobs - few) for _ in range(runs)]
    return {
        "agent_mb": median([one["rss_mb"] for one in children]),
        "supervisor_mb": median([one["rss_mb"] for one in supervisors]),
        "bytes_per_buffered_job": round(median(per_job)),
        "buffered_jobs": jobs,
        "argument_bytes": 100,
        "spread": {
            "agent": {name: summary([one[name] for one in children], digits=1) for name in children[0]},
            "supervisor": {name: summary([one[name] for one in supervisors], digits=1) for name in supervisors[0]},
            "bytes_per_buffered_job": summary(per_job),
        },
        "servers": servers,
    }


@click.command()
@click.option("--runs", default=5, show_default=True)
@click.option("--jobs", default=100_000, show_default=True, help="Buffered jobs of one process.")
@output_options
def main(runs: int, jobs: int, as_json: bool, save: bool) -> None:
    """Megabytes of each process, bytes of each buffered job."""
    show("memory", run(runs, jobs), as_json=as_json, save=save)


if __name__ == "__main__":
    main()
