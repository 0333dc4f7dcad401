"""What the tests of isolated handlers have in common: jobs, pools, and waiting for other processes."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from jobmaster.clock import SystemClock, new_id
from jobmaster_agents.execute.attempt_result import ResultKind
from jobmaster_agents.execute.process_pool.pool import ProcessPool
from jobmaster_agents.execute.process_pool.protocol import ProcessJob
from jobmaster_agents.execute.process_pool.worker_process import OnOutput, WorkerLimits, WorkerProcess
from tests.support.patience import PATIENCE_SECONDS
from tests.support.processes import alive
from tests.support.waiting import until

MODULE = "tests.unit.agents.execute.process_pool.isolated_handlers"
RESULT_BYTES = 64 * 1024
ERROR_BYTES = 16 * 1024
QUICK = WorkerLimits(kill_grace_seconds=0.2)
NEVER_KILLED = WorkerLimits(kill_grace_seconds=2 * PATIENCE_SECONDS)
"""A test that relies on the kill runs out of patience first."""
LOGGER = logging.getLogger("tests.isolation")


class WatchedPool(ProcessPool):
    """A pool that shows its processes."""

    ended_processes = 0
    """Workers that have ended, in whatever way."""

    @property
    def is_closed(self) -> bool:
        return self._closing.is_set()

    @property
    def pids(self) -> list[int]:
        """Processes that run now."""
        return [process.pid for process in self._processes if process.pid]

    def running(self, job: ProcessJob) -> WorkerProcess | None:
        """The worker that runs a job."""
        return next((each for each in self._processes if each._running is not None and each._running.job is job), None)

    async def stop_running(self, job: ProcessJob) -> None:
        """Stop a running job as the end of the pool does, once the pool has read that it began."""
        await until(lambda: self.running(job) is not None, "the start of the job")
        worker = self.running(job)
        assert worker is not None
        assert worker._running is not None
        worker.stop(worker._running, ResultKind.CANCELLED)

    def _went(self, worker: WorkerProcess) -> None:
        self.ended_processes += 1
        super()._went(worker)


Make = Callable[..., WatchedPool]


def make_job(handler: str, *, timeout: float = PATIENCE_SECONDS, **args: Any) -> ProcessJob:
    return ProcessJob(
        job_id=new_id(),
        handler=f"iso.{handler}",
        args=msgspec.json.encode(args),
        token=3,
        attempt=2,
        max_attempts=4,
        rescues=1,
        lane="payroll",
        priority=4,
        tags=("a", "b"),
        metadata={"for": "tests"},
        timeout_seconds=timeout,
    )


async def content_of(path: Path) -> str:
    """What a handler has written into a file."""
    await until(path.exists)
    return path.read_text()


class KeptPools:
    """Pools with workers that are as good as new, for the next test: to start a worker takes a tenth of a second of processor
    time. Those of a module are closed at its end, with the proof that no process of theirs is left."""

    def __init__(self) -> None:
        self._pools: list[tuple[object, WatchedPool]] = []

    def take(self, kind: object) -> WatchedPool | None:
        """A kept pool of this kind, as if it were new but for its workers."""
        at = next((at for at, (kept, _) in enumerate(self._pools) if kept == kind), None)
        if at is None:
            return None
        _, pool = self._pools.pop(at)
        pool.ended_processes = 0
        return pool

    async def give_back(self, kind: object, pool: WatchedPool) -> bool:
        """False when a job runs in the pool, or it has other reasons to be closed."""
        if pool.is_closed or pool._failures or not all(each.usable or each.cleaning_up for each in pool._processes):
            return False
        await until(lambda: not any(each.cleaning_up for each in pool._processes))
        self._pools.append((kind, pool))
        return True

    async def close(self) -> None:
        """Close all of them."""
        await _close([pool for _, pool in self._pools])


@asynccontextmanager
async def pools(kept: KeptPools | None = None) -> AsyncIterator[Make]:
    """Pools that are kept or closed at the end, with the proof that no process of a closed one is left.

    A pool of another module, with an ``on_output``, ``fresh``, or without forks, is used once.
    """
    pools: list[tuple[object, WatchedPool]] = []

    def make(
        size: int = 1,
        limits: WorkerLimits | None = None,
        paths: tuple[str, ...] = (MODULE,),
        on_output: OnOutput | None = None,
        *,
        fresh: bool = False,
        forks: bool = True,
    ) -> WatchedPool:
        kind = None if fresh or not forks or on_output or paths != (MODULE,) else (size, limits)
        pool = kept.take(kind) if kept is not None and kind is not None else None
        if pool is None:
            pool = WatchedPool(
                paths, size, result_bytes=RESULT_BYTES, error_bytes=ERROR_BYTES, logger=LOGGER, clock=SystemClock(),
                limits=limits, on_output=on_output or (lambda line, pid, job: None), forks=forks,
            )  # fmt: skip
        pools.append((kind, pool))
        return pool

    yield make
    await _close([pool for kind, pool in pools if kept is None or kind is None or not await kept.give_back(kind, pool)])


async def _close(pools: Sequence[WatchedPool]) -> None:
    seen: set[int] = set()
    for pool in pools:
        seen.update(pool.pids)
        async with asyncio.timeout(PATIENCE_SECONDS):
            await pool.close()
        assert pool.pids == []
    assert [pid for pid in seen if alive(pid)] == []


async def value(pool: ProcessPool, handler: str, **args: Any) -> Any:
    """Result of a job that must succeed."""
    ended = await pool.run(make_job(handler, **args))
    assert ended.kind is ResultKind.OK, ended
    return None if ended.result is None else json.loads(ended.result)
