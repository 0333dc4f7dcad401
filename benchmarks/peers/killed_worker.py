"""From a SIGKILL to the next start of the jobs that were running: ours by ``benchmarks.agent.rescue``, and each peer's.

Two workers of a peer run jobs that do not end. ``worker``: one of them is killed with all its processes. ``child``: only the
process that runs the job is killed, where that is not the command itself. Then the jobs are allowed to end, and the time runs
until the last of those that had run in the killed process has started again, in the other worker or in a successor. The peers
are measured at the same time, because nearly all of it is waiting; settings that decide about this are as they come.
"""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.agent import rescue
from benchmarks.peers import job_counter
from benchmarks.peers.environments import Environment
from benchmarks.peers.job_counter import GATE, Start
from benchmarks.peers.rival import Rival, kill
from benchmarks.support.measured_cluster import descendants, measured_cluster
from benchmarks.support.report import progress

OURS = "jobmaster"
CASES = ("child", "worker")
_JOBS_MAX = 15
_START_SECONDS = 60.0
_LOOK_SECONDS = 0.02
_SUBMIT_SECONDS = 1.0
_TOGETHER = 4
"""Peers whose workers start at the same time."""


def again(starts: list[Start], wanted: set[str], killed_at_us: int) -> float | None:
    """Seconds until the last of the jobs had started once more; ``None`` while one has not."""
    later: dict[str, int] = {}
    for start in starts:
        if start.text in wanted and start.at_us > killed_at_us:
            later[start.text] = min(start.at_us, later.get(start.text, start.at_us))
    return (max(later.values()) - killed_at_us) / 1e6 if later.keys() == wanted else None


def one_kill(rival: Rival, case: str, within: float) -> float | str | None:
    """Seconds, ``None``: not within the time, or ``same`` where the worker has no process of its own for jobs."""
    with tempfile.TemporaryDirectory(prefix="marks-") as name:
        marks = Path(name)
        with rival.worker(marks, "hold") as one, rival.worker(marks, "hold") as another:
            victim, mine = _running(rival, marks, [one, another])
            runs_in = mine[-1].pid
            if case == "child" and runs_in == victim.pid:
                return "same"
            wanted = {start.text for start in mine if case == "worker" or start.pid == runs_in}
            killed_at_us = time.time_ns() // 1000
            if case == "child":
                os.kill(runs_in, signal.SIGKILL)
            else:
                kill(victim)
            (marks / GATE).touch()
            end = time.monotonic() + within
            while (seconds := again(job_counter.starts(marks), wanted, killed_at_us)) is None:
                if time.monotonic() > end:
                    return None
                time.sleep(_LOOK_SECONDS)
            return seconds


def _running(
    rival: Rival, marks: Path, workers: list[subprocess.Popen[bytes]]
) -> tuple[subprocess.Popen[bytes], list[Start]]:
    """Submit until both workers run a job: one of them, and the starts in it, the newest last. Where one of the two takes
    every job, it is that one; the other has then had a quarter of a minute and more to start."""
    end, submitted = time.monotonic() + _START_SECONDS, 0
    while True:
        if submitted < _JOBS_MAX:
            rival.enqueue("single", 1, kind="hold")
            submitted += 1
        time.sleep(_SUBMIT_SECONDS)
        starts = job_counter.starts(marks)
        below = [(worker, set(descendants(worker.pid))) for worker in workers]
        busy = [(worker, mine) for worker, pids in below if (mine := [start for start in starts if start.pid in pids])]
        late = time.monotonic() > end
        if len(busy) == len(workers) or (busy and (late or submitted == _JOBS_MAX)):
            return busy[0]
        if late:
            raise RuntimeError(f"{rival.peer.name}: no job began in two workers")


def _kills(rival: Rival, runs: int, within: float) -> dict[str, Any]:
    """All kills of one peer, one after the other."""
    found: dict[str, Any] = {}
    for case in CASES if not rival.failure else ():
        seconds: list[float | str | None] = []
        try:
            while len(seconds) < runs and "same" not in seconds:
                seconds.append(one_kill(rival, case, within))
        except RuntimeError as error:
            rival.failed(error)
            break
        found[case] = summed_up(seconds)
        progress(f"{rival.peer.name}, {case}: {found[case]}")
    return found


def summed_up(seconds: list[float | str | None]) -> dict[str, Any]:
    """Median and longest of those that came again, and how many did."""
    came = [one for one in seconds if isinstance(one, float)]
    if "same" in seconds:
        return {"kills": 0}
    figures = {"p50_seconds": round(statistics.median(came), 3), "max_seconds": round(max(came), 3)} if came else {}
    return {"kills": len(seconds), "came_again": len(came), **figures}


def run(environments: list[Environment], runs: int, within: float) -> dict[str, Any]:
    """Ours, then the peers, some of them at a time."""
    found: dict[str, Any] = {OURS: {}}
    for case in CASES:
        ours = rescue.run(rescue.Case(whole=case == "worker", leases={}, trials=runs), 1)
        found[OURS][case] = {"kills": runs, "came_again": runs}
        found[OURS][case] |= {name: ours[name] for name in ("p50_seconds", "max_seconds")}
        progress(f"{OURS}, {case}: {found[OURS][case]}")
    with measured_cluster(tcp=True) as measured, ThreadPoolExecutor(_TOGETHER) as pool:
        rivals = [Rival(measured, environment) for environment in environments]
        for rival in rivals:
            rival.attempt(rival.setup)
        for rival, kills in zip(rivals, pool.map(lambda one: _kills(one, runs, within), rivals), strict=True):
            found[rival.peer.name] = kills
        return {
            "killed": {name: kills for name, kills in found.items() if kills},
            "within_seconds": within,
            "peers": {rival.peer.name: rival.described() for rival in rivals},
            "unusable": {rival.peer.name: rival.failure for rival in rivals if rival.failure},
            "servers": asyncio.run(measured.described()),
        }
