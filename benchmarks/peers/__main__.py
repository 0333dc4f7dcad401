"""``python -m benchmarks.peers --with saq,pgqueuer,...``: the same work on the same servers, ours and theirs in turns.

``--part drain`` (this module): a drain counts jobs that do nothing and were all queued before. A peer's rate runs from the
start of its first job to the end of its last one, whether or not that outcome has been stored by then; ours from the moment
the frozen agents are let go to the last outcome committed in the master. Both sides reach the servers over the loopback and
have the same number of processes. Submits come from one producer process while no worker takes jobs.

``--part cpu`` drains, too, and reports only the processor time of a job. The other parts have a module each: kinds of work,
latency of a start, and what becomes of the job of a killed worker.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
from functools import partial
from pathlib import Path
from typing import Any

import click
import msgspec
import uvloop

from benchmarks import drain, submit
from benchmarks.peers import killed_worker, start_latency, work_kinds
from benchmarks.peers.catalogue import PEERS, UNAVAILABLE, Peer
from benchmarks.peers.environments import DEFAULT, Environment, installed
from benchmarks.peers.rival import CALLERS, Rival, per_job
from benchmarks.support.handlers import handlers
from benchmarks.support.measured_cluster import MEDIUM_ONLY, MeasuredCluster, measured_cluster
from benchmarks.support.report import median, output_options, progress, show, summary
from jobmaster.model.job import Durability
from jobmaster.wiring import open_cluster

OURS = "jobmaster"
CPU_INCLUDES = "from the first job on, without the start of the workers"
COUNTS = (1, 2)
JOBS = 200_000
"""Of one drain on our side; fewer make the peers' shares smaller, too."""
_SUBMITTED = {"single": 1000, "concurrent": 5000, "bulk": 20_000}
"""Jobs of one run of a peer."""
_DURABILITY = {"postgresql": Durability.MASTER, "redis": Durability.STORE}
_AGENTS = {f"with{count}": {"buckets": {**MEDIUM_ONLY, "medium": 5}, "processes": count} for count in COUNTS}
Rates = dict[str, list[float]]
Used = dict[str, dict[str, list[dict[str, float]]]]
"""Processes -> name -> CPU microseconds a job, by kind of process, of each run."""


# ---------------------------------------------------------------- rounds


def drains(measured: MeasuredCluster, rivals: list[Rival], processes: int, runs: int, jobs: int, used: Used) -> Rates:
    """Everybody in turn, after one turn to warm up; CPU microseconds a job of each run go into ``used``."""
    rates: Rates = {OURS: [], "floor": [], "raw_copy": [], **{rival.peer.name: [] for rival in rivals}}
    measured.start_agent("--name", f"with{processes}")
    for number in range(runs + 1):
        scale = 1.0 if number else 0.1
        own = drain.one_drain(measured, int(jobs * scale))
        turn = {OURS: own["jobs_per_second"]}
        cpu = {OURS: per_job({}, own["cpu_seconds"], int(jobs * scale), ("agents", "postgres", "store"))}
        for bare in ("floor", "raw_copy"):
            turn[bare] = drain.one_floor(measured, bare, max(int(jobs * scale), 1000))["jobs_per_second"]
        for rival in rivals:
            share = max(int(rival.peer.drain_jobs * scale * jobs / JOBS), 50) * processes
            turn |= rival.attempt(partial(rival.queue_and_drain, processes, share))
            cpu[rival.peer.name] = rival.used
        progress(f"drain, {processes} processes: " + ", ".join(f"{name} {rate:,.0f}/s" for name, rate in turn.items()))
        for name, rate in turn.items() if number else ():
            rates[name].append(rate)
            used.setdefault(str(processes), {}).setdefault(name, []).append(cpu.get(name, {}))
    measured.stop_agents()
    return rates


def submits(measured: MeasuredCluster, rivals: list[Rival], runs: int, jobs: int) -> dict[str, Rates]:
    """One by one, from 100 callers, in bulk; at both durabilities on our side."""
    measured.start_agent("--name", "with1")
    measured.signal_agents(signal.SIGSTOP)
    ways: dict[str, Rates] = {way: {} for way in _SUBMITTED}
    for number in range(runs + 1):
        scale = 1.0 if number else 0.1
        for way, rates in ways.items():
            turn = {
                f"{OURS} ({durability.value})": _ours(measured, way, durability, int(jobs * scale))
                for durability in sorted({_DURABILITY[rival.peer.store] for rival in rivals})
            }
            for rival in rivals:
                if way == "bulk" and not rival.peer.bulk:
                    continue
                share = max(int(_SUBMITTED[way] * scale * min(jobs / JOBS, 1)), CALLERS)
                turn |= rival.attempt(partial(rival.enqueue, way, share, CALLERS))
            if number:
                progress(f"{way}: " + ", ".join(f"{name} {rate:,.0f}/s" for name, rate in turn.items()))
                for name, rate in turn.items():
                    rates.setdefault(name, []).append(rate)
    measured.kill_agents()
    return ways


def _ours(measured: MeasuredCluster, way: str, durability: Durability, jobs: int) -> float:
    """Jobs per second of our client, in this process."""

    async def measure() -> float:
        section = msgspec.structs.replace(measured.settings.jobs, durability=durability)
        async with await open_cluster(msgspec.structs.replace(measured.settings, jobs=section), handlers) as cluster:
            await submit.callers(cluster, 1, 10)
            if way == "bulk":
                return (await submit.rate(lambda n: submit.bulk(cluster, n), jobs))[0]
            count = CALLERS if way == "concurrent" else 1
            share = max(jobs if way == "concurrent" else jobs // 20, count) // (
                10 if durability is Durability.MASTER else 1
            )
            return (await submit.rate(lambda n: submit.callers(cluster, count, n), max(share, count)))[0]

    return uvloop.run(measure())


# ---------------------------------------------------------------- the report


def compared(rivals: list[Rival], by_count: dict[int, Rates], ways: dict[str, Rates]) -> dict[str, Any]:
    """Ratios, each rate beside them; the ratio of a peer is that of our fastest count of processes to its fastest."""
    rates: dict[str, Any] = {}
    for rival in rivals:
        name = rival.peer.name
        rates[name] = {
            str(count): {
                "ours": median(found[OURS]),
                "theirs": median(found[name]),
                "ratio": round(median(found[OURS]) / median(found[name]), 2),
            }
            for count, found in by_count.items()
        }
    report: dict[str, Any] = {
        "ratio": {
            name: round(max(one["ours"] for one in counts.values()) / max(one["theirs"] for one in counts.values()), 2)
            for name, counts in rates.items()
        },
        "rates": rates,
        "floor": {str(count): median(found["floor"]) for count, found in by_count.items()},
        "share_of_floor": {
            str(count): round(median(found[OURS]) / median(found["floor"]), 3) for count, found in by_count.items()
        },
        "raw_copy_rows_per_second": {str(count): median(found["raw_copy"]) for count, found in by_count.items()},
        "processes": list(by_count),
    }
    for way, found in ways.items():
        report[f"{way}_submit"] = {name: median(values) for name, values in found.items()}
        report[f"{way}_submit_ratio"] = {
            rival.peer.name: round(
                median(found[f"{OURS} ({_same(rival.peer).value})"]) / median(found[rival.peer.name]), 2
            )
            for rival in rivals
            if rival.peer.name in found
        }
    if (default := f"{OURS} ({Durability.STORE.value})") in (bulk := ways.get("bulk", {})):
        report["bulk_submit_ratio_at_our_default_level"] = {
            rival.peer.name: round(median(bulk[default]) / median(bulk[rival.peer.name]), 2)
            for rival in rivals
            if rival.peer.name in bulk
        }
    return report


def used_of_a_job(runs: list[dict[str, float]]) -> dict[str, float]:
    """Medians by kind of process, of the runs in which it could be measured."""
    measured = [one for one in runs if one]
    return {kind: median([one[kind] for one in measured]) for kind in measured[0]} if measured else {}


def cpu_report(used: Used) -> dict[str, Any]:
    """What a job cost everybody, and what is counted."""
    counts = {count: {name: used_of_a_job(each) for name, each in found.items()} for count, found in used.items()}
    return {"cpu_us_per_job": counts, "cpu_includes": CPU_INCLUDES}


def _same(peer: Peer) -> Durability:
    """Our level that survives what the peer's acknowledgement survives."""
    return _DURABILITY[peer.store]


def run_cpu(environments: list[Environment], runs: int, jobs: int) -> dict[str, Any]:
    """The drains alone, for what a job costs: other work on the machine changes it little, and rates much."""
    with measured_cluster({"agents": _AGENTS}, tcp=True) as measured:
        rivals = [Rival(measured, environment) for environment in environments]
        for rival in rivals:
            rival.attempt(rival.setup)
        servers = asyncio.run(measured.described())
        used: Used = {}
        for count in COUNTS:
            drains(measured, rivals, count, runs, jobs, used)
    return {
        **cpu_report(used),
        "peers": {rival.peer.name: rival.described() for rival in rivals if not rival.failure},
        "drain_jobs": jobs,
        "unusable": {rival.peer.name: rival.failure for rival in rivals if rival.failure},
        "servers": servers,
    }


def run(
    environments: list[Environment], unusable: dict[str, str], runs: int, jobs: int, *, with_submits: bool
) -> dict[str, Any]:
    """Drains and submits, and the comparison."""
    with measured_cluster({"agents": _AGENTS}, tcp=True) as measured:
        rivals = [Rival(measured, environment) for environment in environments]
        for rival in rivals:
            rival.attempt(rival.setup)
        servers = asyncio.run(measured.described())
        used: Used = {}
        by_count = {count: drains(measured, rivals, count, runs, jobs, used) for count in COUNTS}
        ways = submits(measured, rivals, runs, jobs) if with_submits else {}
        unusable = unusable | {rival.peer.name: rival.failure for rival in rivals if rival.failure}
        report = compared([rival for rival in rivals if not rival.failure], by_count, ways)
        report |= cpu_report(used)
        report["peers"] = {rival.peer.name: rival.described() for rival in rivals}
    ours = {
        "settings": "5 buckets a process; submits at level store beside Redis peers, at level master beside PostgreSQL peers",
        "durable_at_acknowledgement": "agent: in the store's append-only file (everysec); master: a committed row",
        "outcome_kept": "a row in the master, synchronous_commit on, before the job leaves the store",
    }
    spread = {}
    for count, found in by_count.items():
        spread[str(count)] = {name: summary(values) for name, values in found.items() if values}
    return {**report, OURS: ours, "drain_jobs": jobs, "spread": spread, "unusable": unusable, "servers": servers}


def _names(_: click.Context, __: click.Parameter, value: str) -> list[str]:
    known = [*PEERS, *UNAVAILABLE]
    names = known if value == "all" else [name.strip() for name in value.split(",") if name.strip()]
    if unknown := [name for name in names if name not in known]:
        raise click.BadParameter(f"{', '.join(unknown)}: there is no adapter; there are {', '.join(PEERS)}")
    return names


def _kinds(_: click.Context, __: click.Parameter, value: str) -> list[str]:
    kinds = [kind.strip() for kind in value.split(",") if kind.strip()]
    if unknown := [kind for kind in kinds if kind not in work_kinds.KINDS]:
        raise click.BadParameter(f"{', '.join(unknown)}: not a kind; there are {', '.join(work_kinds.KINDS)}")
    return kinds


@click.command()
@click.option(
    "--with", "names", required=True, callback=_names, metavar="A,B,...", help=f"all, or of: {', '.join(PEERS)}.",
)  # fmt: skip
@click.option(
    "--part", type=click.Choice(["drain", "cpu", "kinds", "latency", "rescue"]), default="drain", show_default=True
)
@click.option("--runs", default=5, show_default=True, help="Turns; for rescue the kills of each process.")
@click.option(
    "--jobs", default=JOBS, show_default=True, help="drain: jobs of one drain on our side; less for the peers."
)
@click.option("--submits/--no-submits", "with_submits", default=True, show_default=True, help="drain: submits, too.")
@click.option("--kinds", default=",".join(work_kinds.KINDS), callback=_kinds, show_default=True, help="Of work.")
@click.option("--scale", default=1.0, show_default=True, help="kinds, latency: of the number of jobs.")
@click.option("--within", default=120.0, show_default=True, help="rescue: seconds that are waited for a job.")
@click.option(
    "--cache", type=click.Path(path_type=Path, file_okay=False), default=DEFAULT, show_default=True,
    help="Where the peers' environments are kept.",
)  # fmt: skip
@click.option("--fresh", is_flag=True, help="Install the peers again.")
@output_options
def main(
    names: list[str], part: str, runs: int, jobs: int, with_submits: bool, kinds: list[str], scale: float, within: float,
    cache: Path, fresh: bool, as_json: bool, save: bool,
) -> None:  # fmt: skip
    """The same work on the same servers: ours divided by theirs."""
    cache = cache.expanduser()
    for name in names if fresh else ():
        if name in PEERS:
            shutil.rmtree(cache / PEERS[name].adapter, ignore_errors=True)
    environments, unusable = installed(names, cache)
    match part:
        case "cpu":
            found = run_cpu(environments, runs, jobs)
        case "kinds":
            found = work_kinds.run(environments, kinds, runs, scale)
        case "latency":
            found = start_latency.run(environments, runs, scale)
        case "rescue":
            found = killed_worker.run(environments, runs, within)
        case _:
            found = run(environments, unusable, runs, jobs, with_submits=with_submits)
    found["unusable"] = unusable | found.get("unusable", {})
    show("peers" if part == "drain" else f"peers_{part}", found, as_json=as_json, save=save)


if __name__ == "__main__":
    main()
