"""``python -m benchmarks.portal``: the event loop of a ``SyncCluster`` beside anyio's blocking portal.

Threads submit one job after the other through a ``SyncCluster``, then through one with a blocking portal in place of its
loop; each run of the one is followed by a run of the other. ``portal_over_loop`` is the median of the ratios of such pairs.
The agent that owns the buckets is stopped, so that it shares no processor.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, TypeVar

import click
from anyio.from_thread import BlockingPortal, start_blocking_portal

from benchmarks.drain import TEXT
from benchmarks.support.handlers import handlers, noop
from benchmarks.support.measured_cluster import MEDIUM_ONLY, measured_cluster
from benchmarks.support.report import median, output_options, progress, show, summary
from jobmaster.client.cluster import Cluster
from jobmaster.client.sync import SyncCluster
from jobmaster.settings.model import ClusterSettings
from jobmaster.wiring import open_cluster

THREADS = (1, 8)
_LEASES = {"lease": "600s", "renew": "10s"}

T = TypeVar("T")


class PortalCluster(SyncCluster):
    """A ``SyncCluster`` whose calls go through a blocking portal."""

    _manager: AbstractContextManager[BlockingPortal]
    _portal: BlockingPortal

    def _start(self) -> tuple[asyncio.AbstractEventLoop, Cluster]:
        self._pid = os.getpid()
        self._manager = start_blocking_portal("asyncio")
        self._portal = self._manager.__enter__()
        return self._portal.call(asyncio.get_running_loop), self._portal.call(_opened, self._opener)

    def _call(self, make: Callable[[Cluster], Coroutine[Any, Any, T]]) -> T:
        _, cluster = self._started()
        result: T = self._portal.call(make, cluster)
        return result

    def close(self) -> None:
        """Close the cluster and end the portal's thread."""
        if not self._closed and self._cluster is not None:
            self._closed = True
            self._portal.call(self._cluster.close)
            self._manager.__exit__(None, None, None)


async def _opened(opener: Any) -> Cluster:
    cluster: Cluster = await opener()
    return cluster


def rate(cluster: SyncCluster, threads: int, jobs: int) -> float:
    """Jobs a second of some threads, each of which submits one job after the other."""

    def submit(count: int) -> None:
        for _ in range(count):
            cluster.submit(noop, {"text": TEXT})

    with ThreadPoolExecutor(threads) as pool:
        began = time.perf_counter()
        for done in [pool.submit(submit, jobs // threads) for _ in range(threads)]:
            done.result()
        return jobs // threads * threads / (time.perf_counter() - began)


def pairs(settings: ClusterSettings, jobs: int, runs: int) -> dict[str, Any]:
    """By number of threads: the rates of both, and their ratios."""
    opener = partial(open_cluster, settings, handlers)
    with SyncCluster(opener, handlers=handlers) as loop, PortalCluster(opener, handlers=handlers) as portal:
        found: dict[str, Any] = {}
        for threads in THREADS:
            for cluster in (loop, portal):
                rate(cluster, threads, max(jobs // 10, threads))
            rates = [(rate(loop, threads, jobs), rate(portal, threads, jobs)) for _ in range(runs)]
            found[str(threads)] = {
                "loop_jobs_per_second": summary([of_loop for of_loop, _ in rates]),
                "portal_jobs_per_second": summary([of_portal for _, of_portal in rates]),
                "portal_over_loop": round(median([of_portal / of_loop for of_loop, of_portal in rates]), 3),
            }
            progress(f"{threads} threads: {found[str(threads)]['portal_over_loop']}")
        return found


def run(jobs: int, runs: int) -> dict[str, Any]:
    """Both on one cluster whose agent is frozen."""
    overrides = {"agents": {"default": {"buckets": {**MEDIUM_ONLY, "medium": 3}}}, "leases": _LEASES}
    with measured_cluster(overrides) as measured:
        measured.start_agent()
        servers = asyncio.run(measured.described())
        measured.signal_agents(signal.SIGSTOP)
        found = pairs(measured.settings, jobs, runs)
    return {
        "portal_over_loop": {threads: one["portal_over_loop"] for threads, one in found.items()},
        "jobs": jobs,
        "runs": runs,
        "details": found,
        "servers": servers,
    }


@click.command()
@click.option("--jobs", default=5000, show_default=True, help="Of one run.")
@click.option("--runs", default=15, show_default=True, help="Pairs of runs for each number of threads.")
@output_options
def main(jobs: int, runs: int, as_json: bool, save: bool) -> None:
    """Submits of a SyncCluster beside those through a blocking portal, in pairs of runs."""
    show("portal", run(jobs, runs), as_json=as_json, save=save)


if __name__ == "__main__":
    main()
