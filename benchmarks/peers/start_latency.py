"""From submit to the first line of the job, one job at a time on idle workers: ours and each peer's in turns.

A job carries the moment of its submit, and writes the moment of its start; both are read from the clock of one machine. The
jobs come at even distances, so that workers are idle when one comes. One worker process each.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path
from typing import Any

import uvloop

from benchmarks import latency
from benchmarks.peers import job_counter
from benchmarks.peers.environments import Environment
from benchmarks.peers.rival import Rival
from benchmarks.support.handlers import handlers
from benchmarks.support.measured_cluster import MEDIUM_ONLY, MeasuredCluster, measured_cluster
from benchmarks.support.report import progress
from jobmaster.wiring import open_cluster

OURS = "jobmaster"
_JOBS = 300
_PER_SECOND = 20.0
_FIRST_SECONDS = 60.0
_LAST_SECONDS = 30.0
_LOOK_SECONDS = 0.02


def theirs(rival: Rival, jobs: int) -> dict[str, float]:
    """Quantiles of one worker process of a peer; ``RuntimeError`` when jobs do not start."""
    with tempfile.TemporaryDirectory(prefix="marks-") as name:
        marks = Path(name)
        with rival.worker(marks, "stamp"):
            rival.enqueue("single", 1, kind="stamp")
            _wait(rival, marks, 1, _FIRST_SECONDS)
            known = {start.text for start in job_counter.starts(marks)}
            rival.enqueue("single", jobs, kind="stamp", pace=1 / _PER_SECOND)
            _wait(rival, marks, len(known) + jobs, _LAST_SECONDS)
        return latency.quantiles(waits(job_counter.starts(marks), known)[-jobs:])


def waits(starts: list[job_counter.Start], without: set[str]) -> list[float]:
    """Milliseconds from submit to first start, in the order of the submits."""
    first: dict[str, int] = {}
    for start in starts:
        first[start.text] = min(start.at_us, first.get(start.text, start.at_us))
    return [(first[text] - int(text)) / 1000 for text in sorted(first, key=int) if text not in without]


def _wait(rival: Rival, marks: Path, count: int, seconds: float) -> None:
    end = time.monotonic() + seconds
    while len(found := job_counter.starts(marks)) < count:
        if time.monotonic() > end:
            raise RuntimeError(f"{rival.peer.name} started {len(found)} of {count} jobs and then no more")
        time.sleep(_LOOK_SECONDS)


async def _ours(measured: MeasuredCluster, jobs: int) -> dict[str, float]:
    async with await open_cluster(measured.settings, handlers) as cluster:
        ids = await latency.light(cluster, jobs + latency.WARM_UP, _PER_SECOND)
        return await latency.recorded(measured, cluster, ids)


def _turn(measured: MeasuredCluster, rivals: list[Rival], jobs: int) -> dict[str, dict[str, float]]:
    """Everybody once; our agent is idle in the others' turns, as the servers are."""
    found = {
        OURS: uvloop.run(_ours(measured, jobs)),
        "bare_pop": latency.quantiles(asyncio.run(latency.floor(measured.url, jobs, _PER_SECOND))),
    }
    for rival in rivals:
        if rival.failure:
            continue
        try:
            found[rival.peer.name] = theirs(rival, jobs)
            rival.clear()
        except RuntimeError as error:
            rival.failed(error)
    return found


def run(environments: list[Environment], runs: int, scale: float) -> dict[str, Any]:
    """Medians of the quantiles of all runs."""
    jobs = max(int(_JOBS * scale), 10)
    agents = {"default": {"buckets": {**MEDIUM_ONLY, "medium": 1}}}
    with measured_cluster({"agents": agents}, tcp=True) as measured:
        rivals = [Rival(measured, environment) for environment in environments]
        for rival in rivals:
            rival.attempt(rival.setup)
        measured.start_agent()
        turns = []
        for number in range(runs):
            turns.append(_turn(measured, rivals, jobs))
            shown = ", ".join(f"{name} {one['p50_ms']:g}/{one['p99_ms']:g} ms" for name, one in turns[-1].items())
            progress(f"latency p50/p99, {number + 1}: {shown}")
        names = [name for name in turns[0] if all(name in turn for turn in turns)]
        return {
            "latency": {name: latency.middle([turn[name] for turn in turns]) for name in names},
            "per_second": _PER_SECOND,
            "peers": {rival.peer.name: rival.described() for rival in rivals},
            "unusable": {rival.peer.name: rival.failure for rival in rivals if rival.failure},
            "servers": asyncio.run(measured.described()),
        }
