"""``python -m benchmarks.agent.rescue``: from a SIGKILL to the next start of every job that was running there.

``child``: the agent's process is killed, its supervisor lives. ``agent``: supervisor and agent are killed at once, so the
end of the lease shows the death. The time runs from the kill to the start of the *last* of the jobs that were running in the
killed process. Each trial kills a freshly started agent; a second agent of the same kind lives on, unless ``alone`` is set.
"""

from __future__ import annotations

import asyncio
import math
import os
import signal
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click

from benchmarks.support.handlers import handlers, until_gate
from benchmarks.support.measured_cluster import MeasuredCluster, descendants, measured_cluster
from benchmarks.support.report import output_options, progress, show
from jobmaster.client.cluster import Cluster
from jobmaster.wiring import open_cluster

SHORT_LEASES = {"lease": "1.2s", "renew": "0.4s", "store_beat": "0.2s"}
"""With these a whole agent's death costs less than three seconds."""
_LIMIT_SECONDS = 60.0


class Case(NamedTuple):
    """What is killed, with which leases, how often."""

    whole: bool
    leases: dict[str, str]
    trials: int
    alone: bool = False
    """No second agent: the jobs wait for the successor of the killed process."""


class Start(NamedTuple):
    """One line of the witness file."""

    job: str
    pid: int
    at: float


def starts(path: Path) -> list[Start]:
    """Every start so far."""
    if not path.exists():
        return []
    found = [line.split() for line in path.read_text().splitlines()]
    return [Start(job, int(pid), int(at) / 1e9) for job, pid, at in found]


async def until(path: Path, wanted: Callable[[Sequence[Start]], bool]) -> list[Start]:
    """Read the witness file until it satisfies; ``TimeoutError`` when it never does."""
    end = time.monotonic() + _LIMIT_SECONDS
    while time.monotonic() < end:
        found = starts(path)
        if wanted(found):
            return found
        await asyncio.sleep(0.01)
    raise TimeoutError(f"waited {_LIMIT_SECONDS:g} s; the witness file has {starts(path)}")


def _at_least(total: int) -> Callable[[Sequence[Start]], bool]:
    return lambda seen: len(seen) >= total


async def trial(
    measured: MeasuredCluster, victim: subprocess.Popen[bytes], cluster: Cluster, case: Case, number: int, jobs: int
) -> float:
    """Seconds from the kill to the last restart."""
    path, gate = measured.directory / f"starts-{number}", measured.directory / f"gate-{number}"
    arguments = {"path": str(path), "gate": str(gate)}
    mine: list[Start] = []
    pids: set[int] = set()
    receipts = []
    while len(mine) < jobs:  # until the victim runs enough of them; the others may have some, too
        receipts += [await cluster.submit(until_gate, arguments) for _ in range(jobs)]
        found = await until(path, _at_least(len(receipts)))
        pids = set(descendants(victim.pid)[1:])
        mine = [start for start in found if start.pid in pids]
        if not mine and len(receipts) >= jobs * 10:
            raise RuntimeError("the freshly started agent gets no jobs")
    killed = descendants(victim.pid) if case.whole else descendants(victim.pid)[1:2]
    wanted = {start.job for start in mine}
    began = time.monotonic()
    for pid in killed:
        os.kill(pid, signal.SIGKILL)

    def again(seen: Sequence[Start]) -> bool:
        return wanted <= {start.job for start in seen if start.at > began}

    found = await until(path, again)
    took = max(min(start.at for start in found if start.job == job and start.at > began) for job in wanted) - began
    gate.touch()
    await cluster.wait_all(receipts, timeout=_LIMIT_SECONDS)
    if case.whole:
        victim.wait()
    else:
        victim.send_signal(signal.SIGTERM)
        await asyncio.to_thread(victim.wait, 60)
    measured.agents.remove(victim)
    return took


async def trials(measured: MeasuredCluster, case: Case, jobs: int) -> list[float]:
    """One after the other."""
    if not case.alone:
        measured.start_agent()
    found = []
    for number in range(case.trials):
        victim = await asyncio.to_thread(measured.start_agent)
        # A producer of its own each time: an older one does not have the newest buckets in its map yet.
        async with await open_cluster(measured.settings, handlers) as cluster:
            found.append(await trial(measured, victim, cluster, case, number, jobs))
        if (number + 1) % 10 == 0 or case.whole:
            progress(f"{number + 1} of {case.trials}: {found[-1]:.2f} s, longest {max(found):.2f} s")
    return found


def run(case: Case, jobs: int) -> dict[str, Any]:
    """Median, 99th percentile (the longest but one of a hundred) and maximum over all trials."""
    # Slots for all jobs at once: a job that waits for a slot does not wait for the rescue.
    with measured_cluster({"leases": case.leases, "agents": {"default": {"slots": 500}}}) as measured:
        found = sorted(asyncio.run(trials(measured, case, jobs)))
    return {
        "p50_seconds": round(statistics.median(found), 3),
        "p99_seconds": round(found[math.ceil(len(found) * 0.99) - 1], 3),
        "max_seconds": round(found[-1], 3),
        "trials": len(found),
        "jobs_each": jobs,
        "leases": case.leases or "defaults",
    }


@click.command()
@click.option(
    "--trials",
    "count",
    default=50,
    show_default=True,
    help="Kills of a child, of an agent on short leases; half as many of a child alone.",
)
@click.option(
    "--default-trials", default=10, show_default=True, help="Kills of an agent on default leases (~10 s each)."
)
@click.option("--jobs", default=20, show_default=True, help="Running in the killed process, at least.")
@output_options
def main(count: int, default_trials: int, jobs: int, as_json: bool, save: bool) -> None:
    """Seconds from a SIGKILL to the next start of the jobs that it interrupted."""
    cases = {
        "child": Case(whole=False, leases={}, trials=count),
        "child_alone": Case(whole=False, leases={}, trials=(count + 1) // 2, alone=True),
        "agent_short_leases": Case(whole=True, leases=SHORT_LEASES, trials=count),
        "agent": Case(whole=True, leases={}, trials=default_trials),
    }
    found: dict[str, Any] = {}
    for name, case in cases.items():
        if case.trials:
            progress(f"--- {name}")
            found[name] = run(case, jobs)
            progress(f"{found[name]}")
    show("rescue", found, as_json=as_json, save=save)


if __name__ == "__main__":
    main()
