"""What the tests of isolated handlers have in common: jobs, pools, and waiting for other processes."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable
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
    def pids(self) -> list[int]:
        """Processes that run now."""
        return [process.pid for process in self._processes if process.pid]

    def running(self, job: ProcessJob) -> WorkerProcess | None:
        """The worker that runs a job."""
        return next((process for process in self._processes if process._job is job), None)

    def stop(self, job: ProcessJob) -> None:
        """Stop a running job as the end of the pool does."""
        worker = self.running(job)
        assert worker is not None
        worker.stop(ResultKind.CANCELLED)

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


@asynccontextmanager
async def pools() -> AsyncIterator[Make]:
    """Pools that are closed at the end, with the proof that no process of theirs is left."""
    pools: list[WatchedPool] = []
    seen: set[int] = set()

    def make(
        size: int = 1,
        limits: WorkerLimits | None = None,
        paths: tuple[str, ...] = (MODULE,),
        on_output: OnOutput = lambda line, pid, job: None,
    ) -> WatchedPool:
        pool = WatchedPool(
            paths, size, result_bytes=RESULT_BYTES, error_bytes=ERROR_BYTES, logger=LOGGER, clock=SystemClock(),
            limits=limits, on_output=on_output,
        )  # fmt: skip
        pools.append(pool)
        return pool

    yield make
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
