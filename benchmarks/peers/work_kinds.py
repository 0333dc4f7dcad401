"""Kinds of work, drained by us and by each peer in turns on the same servers, two processes each.

Our handlers are those of ``benchmarks.work``, in the mode that suits the kind: worker processes for jobs that compute,
the event loop for all others. A peer's jobs call the same functions; its rate counts jobs as they end, whether or not an
outcome was stored by then, and ours the outcomes committed in the master.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from benchmarks import work
from benchmarks.peers.environments import Environment
from benchmarks.peers.rival import Rival
from benchmarks.support.measured_cluster import MEDIUM_ONLY, MeasuredCluster, measured_cluster
from benchmarks.support.plain_work import PLAIN
from benchmarks.support.report import median, progress, summary

OURS = "jobmaster"
SPECIAL = ("context", "retry_5", "tags")
"""Kinds that not every adapter knows."""
KINDS = (*PLAIN, "fail_1", *SPECIAL)
PROCESSES = 2
_MODES = {"cpu_1ms": "process"}
"""The others run on the loop."""
_THEIR_JOBS_MAX = {
    "cpu_1ms": 1500, "wait_10ms": 3000, "arguments_16k": 5000, "arguments_128k": 1000, "results_16k": 5000,
    "results_128k": 600, "retry_5": 3000, "fail_1": 3000,
}  # fmt: skip
"""Jobs of one process in one run of a peer; elsewhere as many as in its drain."""
Turn = dict[str, Any]


def mode_of(kind: str) -> str:
    """Our mode of handlers for a kind."""
    return _MODES.get(kind, "loop")


def _turn(measured: MeasuredCluster, rivals: list[Rival], kind: str, scale: float) -> dict[str, Turn]:
    """Everybody once."""
    mode = mode_of(kind)
    jobs = max(int((work.JOBS[mode].get(kind) or work.JOBS[mode][""]) * scale), 100)
    found: dict[str, Turn] = {OURS: work.one_run(measured, kind, mode, jobs)}
    for rival in rivals:
        if kind in SPECIAL and kind not in rival.peer.also:
            continue
        share = max(int(min(rival.peer.drain_jobs, _THEIR_JOBS_MAX.get(kind, rival.peer.drain_jobs)) * scale), 25)
        rate = rival.attempt(partial(rival.queue_and_drain, PROCESSES, share * PROCESSES, kind))
        for name, value in rate.items():
            found[name] = {"jobs_per_second": value, "cpu_us_per_job": rival.used}
    return found


def compared(turns: list[dict[str, Turn]], mode: str) -> dict[str, Any]:
    """Medians of one kind, and for each peer the median of the ratios within one turn."""
    names = [name for name in turns[0] if all(name in turn for turn in turns)]
    rates = {name: [turn[name]["jobs_per_second"] for turn in turns] for name in names}
    return {
        "mode": mode,
        "jobs_per_second": {name: median(values) for name, values in rates.items()},
        "ratio": {
            name: round(median([ours / theirs for ours, theirs in zip(rates[OURS], values, strict=True)]), 2)
            for name, values in rates.items()
            if name != OURS
        },
        "spread": {name: summary(values) for name, values in rates.items()},
        "cpu_us_per_job": {name: turns[-1][name]["cpu_us_per_job"] for name in names},
    }


def run(environments: list[Environment], kinds: list[str], runs: int, scale: float) -> dict[str, Any]:
    """Every kind, a turn to warm up before each."""
    agents = {
        "loop": {"buckets": {**MEDIUM_ONLY, "medium": 5}, "processes": PROCESSES},
        "process": {"buckets": {**MEDIUM_ONLY, "medium": 5}, "processes": 1, "isolated_processes": PROCESSES},
    }
    overrides = {"agents": agents, "handlers": ["benchmarks.support.work_handlers"]}
    found: dict[str, Any] = {}
    with measured_cluster(overrides, tcp=True) as measured:
        rivals = [Rival(measured, environment) for environment in environments]
        for rival in rivals:
            rival.attempt(rival.setup)
        servers = asyncio.run(measured.described())
        for kind in kinds:
            measured.start_agent("--name", mode_of(kind))
            turns = []
            for number in range(runs + 1):
                turn = _turn(measured, rivals, kind, scale if number else scale / 10)
                rates = ", ".join(f"{name} {one['jobs_per_second']:,.0f}/s" for name, one in turn.items())
                progress(f"{kind}, {number or 'warm-up'}: {rates}")
                turns.append(turn)
            found[kind] = compared(turns[1:], mode_of(kind))
            measured.stop_agents()
        return {
            "kinds": found,
            "processes": PROCESSES,
            "peers": {rival.peer.name: rival.described() for rival in rivals},
            "unusable": {rival.peer.name: rival.failure for rival in rivals if rival.failure},
            "servers": servers,
        }
