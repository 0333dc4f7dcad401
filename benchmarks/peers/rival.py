"""One peer on the servers of a measurement: submits, drains and workers of it, as processes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.peers import job_counter
from benchmarks.peers.environments import Environment
from benchmarks.peers.job_counter import Count
from benchmarks.support.measured_cluster import MeasuredCluster, cpu_of, descendants
from benchmarks.support.report import REPOSITORY, progress

CALLERS = 100
_FILLERS = 50
_LOOK_SECONDS = 0.05
_DRAIN_SECONDS_MAX = 180
_SUBMIT_SECONDS_MAX = 300


class Rival:
    """One peer on the servers of this run, over the loopback."""

    def __init__(self, measured: MeasuredCluster, environment: Environment) -> None:
        self.peer = environment.peer
        self._measured = measured
        self._environment = environment
        self.failure = ""
        """Why it is measured no more."""
        self.used: dict[str, float] = {}
        """CPU microseconds a job of its last drain, of its workers and the servers, while jobs ran: without the start of the
        workers. Empty when all jobs were run between two looks."""

    def _variables(self, kind: str, marks: Path | None = None, pace: float = 0.0) -> dict[str, str]:
        chosen = {
            "BENCH_DSN": self._measured.dsn,
            "BENCH_REDIS": self._measured.url,
            "BENCH_KIND": kind,
            "BENCH_PACE": str(pace),
            "BENCH_POOL": self.peer.pool,
            "PYTHONPATH": str(REPOSITORY),
        }
        return {**os.environ, **chosen, **({job_counter.DIRECTORY: str(marks)} if marks else {})}

    def _call(self, *arguments: str, kind: str = "noop", pace: float = 0.0) -> str:
        command = self._environment.command(*arguments)
        done = subprocess.run(
            command,
            cwd=self._environment.cwd,
            env=self._variables(kind, pace=pace),
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
            self.failed(error)
            return {}
        return {self.peer.name: rate}

    def failed(self, error: Exception) -> None:
        """It is measured no more."""
        self.failure = str(error)
        progress(f"{self.peer.name} is out: {error}")

    def queue_and_drain(self, processes: int, jobs: int, kind: str = "noop") -> float:
        """Put jobs in by the fastest way it has, then drain them; jobs per second of the drain."""
        callers = 1 if self.peer.bulk else _FILLERS
        share = max(jobs // callers, 1) * callers
        self.enqueue("bulk" if self.peer.bulk else "concurrent", share, callers, kind=kind)
        self.tidy()
        return self.drain(processes, share, kind)

    def tidy(self) -> None:
        """Its tables as autovacuum leaves them when it comes in time: without dead rows, with statistics of what waits now.
        Graphile Worker, which deletes what has ended, fell from 50,000 jobs a second to 1,000 where that had not been."""
        if self.peer.store == "postgresql":
            asyncio.run(_vacuum_foreign_tables(self._measured))

    def setup(self) -> float:
        """Its tables."""
        self._call("setup")
        return 0.0

    def enqueue(self, way: str, jobs: int, callers: int = 1, *, kind: str = "noop", pace: float = 0.0) -> float:
        """Jobs per second; ``pace`` is seconds between two calls."""
        lines = self._call("enqueue", way, str(jobs), str(callers), kind=kind, pace=pace).splitlines()
        answer = json.loads(lines[-1])
        return float(answer["jobs"] / answer["seconds"])

    def drain(self, processes: int, jobs: int, kind: str = "noop") -> float:
        """Let fresh workers run what is queued; jobs per second."""
        begun: CpuSample | None = None
        with tempfile.TemporaryDirectory(prefix="marks-") as name, contextlib.ExitStack() as running:
            workers = [running.enter_context(self.worker(Path(name), kind)) for _ in range(processes)]
            end = time.monotonic() + _DRAIN_SECONDS_MAX
            while (count := job_counter.read(Path(name))).jobs < jobs:
                if time.monotonic() > end or any(worker.poll() is not None for worker in workers):
                    raise RuntimeError(f"{self.peer.name} ran {count.jobs} of {jobs} jobs ({kind}) and then no more")
                if counts_from_here(begun, count, processes, jobs):
                    begun = CpuSample(count, self._cpu(workers))
                time.sleep(_LOOK_SECONDS)
            self.used = used_since(begun, CpuSample(count, self._cpu(workers)))
            return count.jobs / max(count.last - count.first, 1e-3)

    def _cpu(self, workers: Iterable[subprocess.Popen[bytes]]) -> dict[str, float]:
        """CPU seconds so far of the workers, with all below them, and of the servers."""
        workers_used = sum(
            cpu_of(worker.pid, waited_for=True) + sum(cpu_of(pid) for pid in descendants(worker.pid))
            for worker in workers
        )
        return self._measured.cpu_seconds() | {"workers": workers_used}

    @contextlib.contextmanager
    def worker(self, marks: Path, kind: str = "noop") -> Iterator[subprocess.Popen[bytes]]:
        """A worker by its own command, in a process group of its own, gone afterwards."""
        worker = subprocess.Popen(
            self._environment.command("work"),
            cwd=self._environment.cwd,
            env=self._variables(kind, marks),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            yield worker
        finally:
            kill(worker)

    def clear(self) -> None:
        """Removes all waiting jobs of peers on the store: deletes the keys that are not ours."""
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
            "after_kill": self.peer.after_kill,
        }


def kill(worker: subprocess.Popen[bytes]) -> None:
    """The worker and all below it, also those that have left its process group, at once."""
    for pid in descendants(worker.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(worker.pid, signal.SIGKILL)
    worker.wait(10)


class CpuSample(NamedTuple):
    """What was used when so many jobs had been run."""

    run: Count
    seconds: dict[str, float]


def counts_from_here(begun: CpuSample | None, count: Count, processes: int, jobs: int) -> bool:
    """Whether processor time is to be counted from this look on: a worker has run a job, or, while half of the jobs are
    left, all of them have. What came before is their start."""
    if begun is None:
        return count.jobs > 0
    return begun.run.processes < processes <= count.processes and 2 * count.jobs <= jobs


def used_since(begun: CpuSample | None, ended: CpuSample) -> dict[str, float]:
    """CPU microseconds of each job that was run between two samples."""
    if begun is None or begun.run.jobs >= ended.run.jobs:
        return {}
    return per_job(begun.seconds, ended.seconds, ended.run.jobs - begun.run.jobs, ("workers", "postgres", "store"))


def per_job(before: dict[str, float], after: dict[str, float], jobs: int, names: tuple[str, ...]) -> dict[str, float]:
    """CPU microseconds a job."""
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
