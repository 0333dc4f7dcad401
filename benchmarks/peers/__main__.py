"""``python -m benchmarks.peers --with saq,pgqueuer,...``: the same work on the same servers, ours and theirs in turns.

A drain counts jobs that do nothing and were all queued before. A peer's rate runs from the start of its first job to the
end of its last one, whether or not that outcome has been stored by then; ours from the moment the frozen agents are let go to
the last outcome committed in the master. Both sides reach the servers over the loopback and have the same number of
processes. Submits come from one producer process while no worker takes jobs.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import click
import msgspec
import uvloop

from benchmarks import drain, submit
from benchmarks.peers import job_counter
from benchmarks.peers.catalogue import PEERS, Peer
from benchmarks.peers.environments import DEFAULT, Environment, Unusable
from benchmarks.support.handlers import handlers
from benchmarks.support.measured_cluster import MEDIUM_ONLY, MeasuredCluster, cpu_of, descendants, measured_cluster
from benchmarks.support.report import REPOSITORY, median, output_options, progress, show, summary
from jobmaster.model.job import Durability
from jobmaster.wiring import open_cluster

OURS = "jobmaster"
COUNTS = (1, 2)
CALLERS = 100
_FILLERS = 50
_SUBMITTED = {"single": 1000, "concurrent": 5000, "bulk": 20_000}
"""Jobs of one run of a peer."""
_LOOK_SECONDS = 0.05
_DRAIN_SECONDS_MAX = 180
_SUBMIT_SECONDS_MAX = 300
_DURABILITY = {"postgresql": Durability.MASTER, "redis": Durability.STORE}
Rates = dict[str, list[float]]
Used = dict[str, dict[str, list[dict[str, float]]]]
"""Processes -> name -> CPU microseconds a job, by kind of process, of each run."""


class Rival:
    """One peer on the servers of this run, over the loopback."""

    def __init__(self, measured: MeasuredCluster, environment: Environment) -> None:
        self.peer = environment.peer
        self._measured = measured
        self._environment = environment
        self.failure = ""
        """Why it is measured no more."""
        self.used: dict[str, float] = {}
        """CPU microseconds a job of its last drain: its workers from their start on, and the servers."""

    def _variables(self, marks: Path | None = None) -> dict[str, str]:
        chosen = {"BENCH_DSN": self._measured.dsn, "BENCH_REDIS": self._measured.url, "PYTHONPATH": str(REPOSITORY)}
        return {**os.environ, **chosen, **({job_counter.DIRECTORY: str(marks)} if marks else {})}

    def _call(self, *arguments: str) -> str:
        command = self._environment.command(*arguments)
        done = subprocess.run(
            command,
            cwd=self._environment.cwd,
            env=self._variables(),
            timeout=_SUBMIT_SECONDS_MAX,
            check=False,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise RuntimeError(f"{self.peer.name} {' '.join(arguments)}: {done.stderr[-2000:]}")
        return done.stdout

    def attempt(self, work: Callable[[], float]) -> dict[str, float]:
        """Its rate by its name. A peer that fails is named in the report and measured no more; the others continue."""
        if self.failure:
            return {}
        try:
            rate = work()
            self.clear()
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            self.failure = str(error)
            progress(f"{self.peer.name} is out: {error}")
            return {}
        return {self.peer.name: rate}

    def queue_and_drain(self, processes: int, jobs: int) -> float:
        """Put jobs in by the fastest way it has, then drain them; jobs per second of the drain."""
        callers = 1 if self.peer.bulk else _FILLERS
        share = jobs // callers * callers
        self.enqueue("bulk" if self.peer.bulk else "concurrent", share, callers)
        self.tidy()
        return self.drain(processes, share)

    def tidy(self) -> None:
        """Its tables as autovacuum leaves them when it comes in time: without dead rows, with statistics of what waits now.
        Graphile Worker, which deletes what has ended, fell from 50,000 jobs a second to 1,000 where that had not been."""
        if self.peer.store == "postgresql":
            asyncio.run(_vacuum_foreign_tables(self._measured))

    def setup(self) -> float:
        """Its tables."""
        self._call("setup")
        return 0.0

    def enqueue(self, way: str, jobs: int, callers: int = 1) -> float:
        """Jobs per second."""
        answer = json.loads(self._call("enqueue", way, str(jobs), str(callers)).splitlines()[-1])
        return float(answer["jobs"] / answer["seconds"])

    def drain(self, processes: int, jobs: int) -> float:
        """Queue, then let fresh workers run them; jobs per second."""
        before = self._measured.cpu_seconds()
        with tempfile.TemporaryDirectory(prefix="marks-") as name, self._workers(processes, Path(name)) as workers:
            end = time.monotonic() + _DRAIN_SECONDS_MAX
            while (count := job_counter.read(Path(name))).jobs < jobs:
                if time.monotonic() > end or any(worker.poll() is not None for worker in workers):
                    raise RuntimeError(f"{self.peer.name} ran {count.jobs} of {jobs} jobs and then no more")
                time.sleep(_LOOK_SECONDS)
            after = self._measured.cpu_seconds() | {
                "workers": sum(cpu_of(pid) for worker in workers for pid in descendants(worker.pid))
            }
            self.used = _per_job(before, after, jobs, ("workers", "postgres", "store"))
            return count.jobs / (count.last - count.first)

    @contextlib.contextmanager
    def _workers(self, processes: int, marks: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
        """Worker processes, each in a process group of its own, gone afterwards."""
        workers = [
            subprocess.Popen(
                self._environment.command("work"),
                cwd=self._environment.cwd,
                env=self._variables(marks),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            for _ in range(processes)
        ]
        try:
            yield workers
        finally:
            for worker in workers:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(worker.pid, signal.SIGKILL)
                worker.wait(10)

    def clear(self) -> None:
        """Removes all waiting jobs: recreates the tables, or deletes the keys that are not ours."""
        if self.peer.store == "redis":
            asyncio.run(_forget_foreign_keys(self._measured))

    def described(self) -> dict[str, Any]:
        """What it is and promises."""
        return {
            "versions": self._environment.versions(),
            "settings": self.peer.settings,
            "store": self.peer.store,
            "durable_at_acknowledgement": self.peer.durable_at_acknowledgement,
            "outcome_kept": self.peer.outcome_kept,
        }


def _per_job(before: dict[str, float], after: dict[str, float], jobs: int, names: tuple[str, ...]) -> dict[str, float]:
    return {name: round((after[name] - before.get(name, 0.0)) / jobs * 1e6, 2) for name in names}


async def _forget_foreign_keys(measured: MeasuredCluster) -> None:
    import redis.asyncio

    async with redis.asyncio.from_url(measured.url) as store:
        foreign = [key async for key in store.scan_iter(count=10_000) if not key.startswith(b"jm:")]
        for start in range(0, len(foreign), 10_000):
            await store.unlink(*foreign[start : start + 10_000])


async def _vacuum_foreign_tables(measured: MeasuredCluster) -> None:
    sql = await measured.connect()
    try:
        tables = await sql.fetch(
            "SELECT format('%I.%I', schemaname, relname) AS name FROM pg_stat_user_tables WHERE schemaname <> $1",
            measured.settings.schema_name(),
        )
        for table in tables:
            await sql.execute(f"VACUUM (ANALYZE) {table['name']}")
    finally:
        await sql.close()


# ---------------------------------------------------------------- rounds


def drains(measured: MeasuredCluster, rivals: list[Rival], processes: int, runs: int, jobs: int, used: Used) -> Rates:
    """Everybody in turn, after one turn to warm up; CPU microseconds a job of each run go into ``used``."""
    rates: Rates = {OURS: [], "floor": [], "raw_copy": [], **{rival.peer.name: [] for rival in rivals}}
    measured.start_agent("--name", f"with{processes}")
    for number in range(runs + 1):
        scale = 1.0 if number else 0.1
        own = drain.one_drain(measured, int(jobs * scale))
        turn = {OURS: own["jobs_per_second"]}
        cpu = {OURS: _per_job({}, own["cpu_seconds"], int(jobs * scale), ("agents", "postgres", "store"))}
        for bare in ("floor", "raw_copy"):
            turn[bare] = drain.one_floor(measured, bare, max(int(jobs * scale), 1000))["jobs_per_second"]
        for rival in rivals:
            share = int(rival.peer.drain_jobs * scale) * processes
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
                share = max(int(_SUBMITTED[way] * scale), CALLERS)
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
    """Ratios, each rate beside them; the ratio of a peer is the better of its process counts."""
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
        "ratio": {name: max(one["ratio"] for one in counts.values()) for name, counts in rates.items()},
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


def _same(peer: Peer) -> Durability:
    """Our level that survives what the peer's acknowledgement survives."""
    return _DURABILITY[peer.store]


def run(names: list[str], cache: Path, runs: int, jobs: int, *, with_submits: bool) -> dict[str, Any]:
    """Install, measure, compare."""
    unusable: dict[str, str] = {}
    environments = []
    for name in names:
        environment = Environment(PEERS[name], cache)
        try:
            environment.install()
            environments.append(environment)
        except Unusable as error:
            unusable[name] = str(error)
            progress(str(error))
    agents = {f"with{count}": {"buckets": {**MEDIUM_ONLY, "medium": 5}, "processes": count} for count in COUNTS}
    with measured_cluster({"agents": agents}, tcp=True) as measured:
        rivals = [Rival(measured, environment) for environment in environments]
        for rival in rivals:
            rival.attempt(rival.setup)
        servers = asyncio.run(measured.described())
        used: Used = {}
        by_count = {count: drains(measured, rivals, count, runs, jobs, used) for count in COUNTS}
        ways = submits(measured, rivals, runs, jobs) if with_submits else {}
        unusable |= {rival.peer.name: rival.failure for rival in rivals if rival.failure}
        report = compared([rival for rival in rivals if not rival.failure], by_count, ways)
        report["cpu_us_per_job"] = {
            count: {
                name: {kind: median([one[kind] for one in each]) for kind in each[0]} for name, each in found.items()
            }
            for count, found in used.items()
        }
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
    names = [name.strip() for name in value.split(",") if name.strip()]
    if unknown := [name for name in names if name not in PEERS]:
        raise click.BadParameter(f"{', '.join(unknown)}: there is no adapter; there are {', '.join(PEERS)}")
    return names


@click.command()
@click.option("--with", "names", required=True, callback=_names, metavar="A,B,...", help=f"Of: {', '.join(PEERS)}.")
@click.option("--runs", default=5, show_default=True)
@click.option("--jobs", default=200_000, show_default=True, help="Jobs of one drain on our side.")
@click.option("--submits/--no-submits", "with_submits", default=True, show_default=True)
@click.option(
    "--cache", type=click.Path(path_type=Path, file_okay=False), default=DEFAULT, show_default=True,
    help="Where the peers' environments are kept.",
)  # fmt: skip
@click.option("--fresh", is_flag=True, help="Install the peers again.")
@output_options
def main(
    names: list[str], runs: int, jobs: int, with_submits: bool, cache: Path, fresh: bool, as_json: bool, save: bool
) -> None:
    """The same work on the same servers: ours divided by theirs."""
    if fresh:
        for name in names:
            shutil.rmtree(cache / name, ignore_errors=True)
    found = run(names, cache.expanduser(), runs, jobs, with_submits=with_submits)
    show("peers", found, as_json=as_json, save=save)


if __name__ == "__main__":
    main()
