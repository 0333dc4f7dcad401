"""``python -m benchmarks.submit``: how fast one producer process submits jobs, at each durability level.

One awaited call after another, many callers at once, and in bulk. Beside it, as the floor, RPUSH of the very same messages by
the plain driver: one item per command, and 1,000 items per command. ``own_id_100`` is 100 callers whose jobs have ids of
their own, which are searched first, in every bucket and in the master; it begins with empty buckets, because the search
reads all waiting jobs. The agent that owns the buckets is stopped, so that it neither takes the jobs out nor shares the
processor. ``store_fsync`` runs on a second store with ``appendfsync always``. CPU of producer, store and PostgreSQL is
reported for each way. ``call_over_single`` is the rate of typed calls over that of mappings, in pairs of runs.
"""

from __future__ import annotations

import asyncio
import functools
import signal
import time
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import click
import msgspec
import redis.asyncio
import uvloop

from benchmarks.drain import TEXT
from benchmarks.support.handlers import handlers, noop
from benchmarks.support.measured_cluster import MEDIUM_ONLY, MeasuredCluster, measured_cluster
from benchmarks.support.report import median, output_options, progress, show, summary
from jobmaster import call
from jobmaster.agentstore.keys import Keys
from jobmaster.client.cluster import Cluster
from jobmaster.clock import new_id
from jobmaster.codec import encode_args, encode_entry
from jobmaster.model.job import REQUESTABLE, Durability, Entry
from jobmaster.settings.model import ClusterSettings
from jobmaster.wiring import open_cluster

CALLERS = (1, 10, 100, 1000)
OWN_ID_CALLERS = 100
_SERVERS = ("store", "postgres")
_LEASES = {"lease": "600s", "renew": "10s"}
_APPENDFSYNC = {Durability.STORE: "everysec", Durability.STORE_FSYNC: "always", Durability.MASTER: "everysec"}
_SHARE = {Durability.STORE: 1.0, Durability.STORE_FSYNC: 0.5, Durability.MASTER: 0.1}
"""Jobs of one run, as a share of ``--jobs``: committed rows are slower."""


async def callers(cluster: Cluster, count: int, jobs: int, *, own_ids: bool = False) -> None:
    """``count`` coroutines, each awaiting one submit after the other."""

    async def caller() -> None:
        for _ in range(jobs // count):
            if own_ids:
                await cluster.submit(noop, {"text": TEXT}, job_id=new_id())
            else:
                await cluster.submit(noop, {"text": TEXT})

    await asyncio.gather(*(caller() for _ in range(count)))


async def calling_callers(cluster: Cluster, count: int, jobs: int) -> None:
    """The same jobs as calls with an argument by position: ``cluster.submit(call(noop, ...))``."""

    async def caller() -> None:
        for _ in range(jobs // count):
            await cluster.submit(call(noop, TEXT))

    await asyncio.gather(*(caller() for _ in range(count)))


async def bulk(cluster: Cluster, jobs: int) -> None:
    """One ``submit_many``."""
    done = await cluster.submit_many(({"text": TEXT} for _ in range(jobs)), noop)
    assert done.submitted == jobs, done


async def bare_push(driver: redis.asyncio.Redis, jobs: int, per_command: int) -> None:
    """The same messages, ids and encoding included, without a client."""
    for _ in range(jobs // per_command):
        args = encode_args({"text": TEXT})
        await driver.rpush("bench:bare", *[_message(args) for _ in range(per_command)])
    await driver.delete("bench:bare")


def _message(args: bytes) -> bytes:
    return encode_entry(Entry(new_id(), 1, "bench.noop", args))


async def empty_buckets(cluster: Cluster, driver: redis.asyncio.Redis) -> None:
    """Nothing waits in any bucket afterwards. (The owner, which is frozen, would call that damage.)"""
    keys = [Keys(cluster.settings.cluster).bucket(bucket.id) for bucket in await cluster.master.queries.list_buckets()]
    await driver.delete(*(key for of_bucket in keys for key in (of_bucket.pending, of_bucket.assigned)))


class Rate(NamedTuple):
    """What one run took."""

    jobs_per_second: float
    jobs_per_cpu_second: float
    """Of this process."""
    cpu_us_per_job: dict[str, float]
    """By process."""


def _nothing() -> dict[str, float]:
    return {}


async def rate(
    work: Callable[[int], Awaitable[None]], jobs: int, servers: Callable[[], dict[str, float]] = _nothing
) -> Rate:
    """Hand in some jobs.

    Args:
        servers: CPU seconds that each server has used so far.
    """
    before = servers()
    began, cpu = time.perf_counter(), time.process_time()
    await work(jobs)
    passed, producer = time.perf_counter() - began, time.process_time() - cpu
    after = servers()
    used = {"producer": producer, **{name: after[name] - before[name] for name in after if name in _SERVERS}}
    return Rate(jobs / passed, jobs / producer, {name: 1e6 * seconds / jobs for name, seconds in used.items()})


class Way:
    """One way to hand jobs in, and the rates of its runs."""

    def __init__(
        self,
        name: str,
        jobs: int,
        work: Callable[[int], Awaitable[None]],
        prepare: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.name = name
        self.jobs = jobs
        self.work = work
        self.prepare = prepare
        self.rates: list[Rate] = []

    async def run(self, jobs: int, servers: Callable[[], dict[str, float]]) -> Rate:
        if self.prepare is not None:
            await self.prepare()
        return await rate(self.work, jobs, servers)

    @property
    def median(self) -> float:
        return median([one.jobs_per_second for one in self.rates])

    def report(self) -> dict[str, Any]:
        return {
            "jobs": self.jobs,
            "jobs_per_second": summary([one.jobs_per_second for one in self.rates]),
            "jobs_per_cpu_second": summary([one.jobs_per_cpu_second for one in self.rates]),
            "cpu_us_per_job": {
                name: round(median([one.cpu_us_per_job[name] for one in self.rates]), 2)
                for name in self.rates[0].cpu_us_per_job
            },
        }


def _ways(cluster: Cluster, driver: redis.asyncio.Redis, jobs: int) -> list[Way]:
    def calling(count: int) -> Callable[[int], Awaitable[None]]:
        return lambda share: callers(cluster, count, share)

    def emptied() -> Awaitable[None]:
        return empty_buckets(cluster, driver)

    single = [Way(str(count), _share(jobs, count), calling(count), emptied) for count in CALLERS]
    calls = [
        Way(f"call_{count}", _share(jobs, count), functools.partial(calling_callers, cluster, count), emptied)
        for count in CALLERS
    ]
    return [
        *(way for pair in zip(single, calls, strict=True) for way in pair),
        Way("bulk", jobs, lambda n: bulk(cluster, n)),
        Way(
            f"own_id_{OWN_ID_CALLERS}",
            _share(jobs // 10, OWN_ID_CALLERS),
            lambda n: callers(cluster, OWN_ID_CALLERS, n, own_ids=True),
            emptied,
        ),
        Way("bare_push_1", max(jobs // 10, 1), lambda n: bare_push(driver, n, 1)),
        Way("bare_push_1000", max(jobs, 1000), lambda n: bare_push(driver, n, 1000)),
    ]


def _share(jobs: int, count: int) -> int:
    """Single calls are slow, so fewer of them are made; every caller makes at least one."""
    return max(jobs // 10 if count < 10 else jobs, count)


async def measure(settings: ClusterSettings, measured: MeasuredCluster, jobs: int, runs: int) -> dict[str, Way]:
    """Every way in turn, ``runs`` times, after one turn to warm up."""
    async with await open_cluster(settings, handlers) as cluster, redis.asyncio.from_url(measured.url) as driver:
        await cluster.submit(noop, {"text": TEXT})
        ways = _ways(cluster, driver, jobs)
        for number in range(runs + 1):
            # Jobs pile up in the store, so the later of two ways is slower: every other run has them in reverse.
            for way in ways if number % 2 else reversed(ways):
                warm_up = min(max(way.jobs // 10, 1000), way.jobs)
                found = await way.run(way.jobs if number else warm_up, measured.cpu_seconds)
                if number:
                    way.rates.append(found)
    return {way.name: way for way in ways}


def _paired(one: Way, other: Way) -> float:
    """Median of the ratios of runs that followed each other."""
    pairs = zip(one.rates, other.rates, strict=True)
    return round(median([mine.jobs_per_second / its.jobs_per_second for mine, its in pairs]), 3)


def of_durability(measured: MeasuredCluster, durability: Durability, jobs: int, runs: int) -> dict[str, Any]:
    """All ways at one durability."""
    settings = measured.settings
    jobs_section = msgspec.structs.replace(settings.jobs, durability=durability)
    changed = msgspec.structs.replace(settings, jobs=jobs_section)
    share = max(int(jobs * _SHARE[durability]), 1000)
    ways = uvloop.run(measure(changed, measured, share, runs))
    for way in ways.values():
        progress(f"{durability.value}, {way.name}: {way.median:,.0f}/s")
    return {
        "single": {str(count): ways[str(count)].median for count in CALLERS},
        "call_over_single": {str(count): _paired(ways[f"call_{count}"], ways[str(count)]) for count in CALLERS},
        "single_own_id": {str(OWN_ID_CALLERS): ways[f"own_id_{OWN_ID_CALLERS}"].median},
        "bulk_jobs_per_second": ways["bulk"].median,
        "details": {way.name: way.report() for way in ways.values()},
    }


def run(jobs: int, runs: int, durabilities: tuple[Durability, ...] = REQUESTABLE) -> dict[str, Any]:
    """Every durability, each on a fresh cluster whose agent is frozen."""
    found: dict[str, dict[str, Any]] = {}
    servers: dict[str, Any] = {}
    for durability in durabilities:
        overrides = {"agents": {"default": {"buckets": {**MEDIUM_ONLY, "medium": 3}}}, "leases": _LEASES}
        with measured_cluster(overrides, valkey_settings={"appendfsync": _APPENDFSYNC[durability]}) as measured:
            measured.start_agent()
            servers[durability.value] = asyncio.run(measured.described())
            measured.signal_agents(signal.SIGSTOP)
            found[durability.value] = of_durability(measured, durability, jobs, runs)
    report: dict[str, Any] = {
        "single": {name: one["single"] for name, one in found.items()},
        "call_over_single": {name: one["call_over_single"] for name, one in found.items()},
        "single_own_id": {name: one["single_own_id"] for name, one in found.items()},
        "bulk_jobs_per_second": {name: one["bulk_jobs_per_second"] for name, one in found.items()},
    }
    store, fsync = found.get("store"), found.get("store_fsync")
    if store and fsync:
        report["fsync_share_100_callers"] = round(fsync["single"]["100"] / store["single"]["100"], 3)
    return {
        **report,
        "details": {name: one["details"] for name, one in found.items()},
        "servers": servers,
        "settings": {"buckets": 3, "argument_bytes": 100, "producers": 1},
    }


@click.command()
@click.option("--jobs", default=100_000, show_default=True)
@click.option("--runs", default=5, show_default=True)
@click.option(
    "--durability", type=click.Choice([each.value for each in REQUESTABLE]), multiple=True, help="Default: all."
)
@output_options
def main(jobs: int, runs: int, durability: tuple[str, ...], as_json: bool, save: bool) -> None:
    """Jobs a second that one producer hands in, beside the same messages through the bare driver."""
    chosen = tuple(Durability(each) for each in durability) or REQUESTABLE
    show("submit", run(jobs=jobs, runs=runs, durabilities=chosen), as_json=as_json, save=save)


if __name__ == "__main__":
    main()
