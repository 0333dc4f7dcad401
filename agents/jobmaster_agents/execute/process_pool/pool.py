"""A pool of worker processes for handlers of mode ``process``: a handler cannot harm another job.

A handler that raises, hangs, exits, crashes the interpreter, floods its output or leaves threads and children behind
costs its own attempt and at most one worker process, which is replaced. Workers start when they are first needed, or before
that by ``warm``; ``worker_launch`` decides how.

A worker that runs short jobs is given further ones before it asks: as many as it will have begun within a few turns of the
loop, by the run times of their handlers. So it does not wait for the agent between two jobs. What does not begin soon,
because a job takes longer than usual, is taken back for the other workers.

This module assigns workers to jobs and starts workers; ``worker_process`` runs, stops and kills one worker.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from math import inf

import msgspec

from jobmaster.clock import Clock
from jobmaster.model.job import ErrorInfo
from jobmaster.rules.backoff import backoff_delay
from jobmaster.settings.model import Traces
from jobmaster_agents.execute.attempt_result import AttemptResult, ResultKind
from jobmaster_agents.execute.process_pool.protocol import ProcessJob, Setup
from jobmaster_agents.execute.process_pool.worker_launch import WorkerLauncher
from jobmaster_agents.execute.process_pool.worker_process import (
    GivenJob,
    OnOutput,
    OnReport,
    WorkerLimits,
    WorkerProcess,
    WorkerStartFailed,
)

MayBegin = Callable[[], Awaitable[bool]]
"""Awaited when the worker for a job is ready, because a process takes time to start: whether the job begins now. False means
NOT_STARTED."""


async def _at_once() -> bool:
    return True


AHEAD_SECONDS = 0.02
"""Work that lies with one worker: more than the agent takes between two looks at its sockets, and little to wait for."""
AHEAD_JOBS = 64
_AHEAD_BYTES = 256 * 1024
"""Of arguments: what a socket takes without a second write."""
_JOB_SECONDS = 0.0001
"""What a job costs a worker beside its handler."""
_STALLED_SECONDS = 0.05
_NEWEST_SHARE = 0.2
DEATHS_MAX = 3
"""So often a process may end with a job that it has not begun. Then the job counts as the cause."""
_START_AGAIN_SECONDS = 0.25
_START_AGAIN_SECONDS_MAX = 10.0


class ProcessPool:
    """Worker processes. Call the methods on the loop's thread.

    Args:
        handler_paths: module paths, as for ``load_handlers``.
        size: number of workers at most, each with one job at a time; as many again for ``run_alone``.
        result_bytes, error_bytes: limits of the result and of the error of one attempt.
        on_output: called with each line that a worker prints.
        on_report: called with how far a handler is, and with its lines, each at most twice a second for each worker.
        access: how workers open transactions on the master (``Setup.access``).
        log_level: of the workers' root logger (``Setup.log_level``).
        provides: what the agent provides (``Setup.provides``).
        forks: False: every worker starts as a new interpreter, also where a fork would be safe.
    """

    def __init__(
        self,
        handler_paths: Sequence[str],
        size: int,
        *,
        result_bytes: int,
        error_bytes: int,
        logger: logging.Logger,
        clock: Clock,
        limits: WorkerLimits | None = None,
        on_output: OnOutput = lambda line, pid, job: None,
        on_report: OnReport = lambda job, report: None,
        access: bytes = b"",
        log_level: str | None = None,
        provides: Sequence[str] = (),
        traces: Traces | None = None,
        forks: bool = True,
    ) -> None:
        if size < 1:
            raise ValueError(f"a pool needs at least one worker process, not {size}")
        self._limits = limits or WorkerLimits()
        self._logger = logger
        self._on_output = on_output
        self._on_report = on_report
        self._now = clock.boottime
        self._size = size
        setup = Setup(
            handler_paths=list(handler_paths),
            import_path=[os.path.abspath(path) for path in sys.path],
            python_path=os.environ.get("PYTHONPATH"),
            result_bytes=result_bytes,
            error_bytes=error_bytes,
            growth_bytes=self._limits.growth_bytes,
            access=access,
            lifespan_seconds=self._limits.lifespan_seconds,
            log_level=log_level,
            provides=tuple(provides),
            traces=traces,
        )
        start_seconds = self._limits.start_seconds
        self._launcher = WorkerLauncher(setup, logger, self._now, on_output, forks=forks, start_seconds=start_seconds)
        self._loop = asyncio.get_running_loop()
        self._processes: set[WorkerProcess] = set()
        """Every started process that has not ended, including those of ``run_alone``."""
        self._shared: set[WorkerProcess] = set()
        """Ready workers, without those of ``run_alone``: idle, running or cleaning up."""
        self._free: list[WorkerProcess] = []
        self._starting = 0
        self._starters: set[asyncio.Task[None]] = set()
        self._waiters: deque[asyncio.Future[WorkerProcess]] = deque()
        self._alone = asyncio.Semaphore(size)
        self._failures = 0
        self._not_before = 0.0
        self._closing = asyncio.Event()
        self._typical_seconds: dict[str, float] = {}
        """How long jobs of a handler keep a worker."""
        self.on_room: Callable[[], None] = lambda: None
        """Called when ``room`` may have an answer."""

    def set_log_level(self, log_level: str | None) -> None:
        """The least severe line of the root logger in workers that start from now on; ``None``: left to their modules."""
        launcher = self._launcher
        launcher.setup = msgspec.structs.replace(launcher.setup, log_level=log_level)

    # ------------------------------------------------------------ running jobs

    async def run(
        self, job: ProcessJob, begin: MayBegin = _at_once, take_back: Callable[[], None] = lambda: None
    ) -> AttemptResult:
        """Run one attempt in the next free worker.

        Args:
            take_back: called when the worker died while ``begin`` was awaited: the job has not begun, whatever ``begin``
                returned, and ``begin`` is awaited again when the next worker is ready.

        A cancellation of the caller stops the handler before the ``CancelledError`` is passed on: when ``await run(...)`` has
        returned or raised, the handler does not run any more.
        """
        for deaths in range(DEATHS_MAX + 1):
            try:
                worker = await self._next_worker()
            except WorkerStartFailed as error:
                return AttemptResult(kind=ResultKind.NOT_STARTED, error=error.info)
            begins = False
            try:
                begins = await begin()
            finally:
                if not begins:
                    self._became_idle(worker)
            if not begins:
                return _TOO_LATE
            if not worker.usable:
                take_back()
            elif (result := await worker.run(job)) is not None:
                self.note_run(job.handler, result)
                return result
            elif deaths < DEATHS_MAX:
                take_back()
        return DIED_BEFORE

    # ------------------------------------------------------------ jobs ahead

    @property
    def grows(self) -> bool:
        """True while fewer workers than the size of the pool have started, or are starting: a job that waits for one comes
        by ``run``."""
        return len(self._shared) + self._starting < self._size

    def room(self) -> WorkerProcess | None:
        """A worker that may be given jobs now; ``None``: there is none, or jobs that came by ``run`` wait for it."""
        if self._closing.is_set() or any(not waiter.done() for waiter in self._waiters):
            return None
        while self._free:
            if self._free[-1].usable:
                return self._free[-1]
            self._free.pop()
        for worker in self._shared:
            if worker.takes_more and worker.load_seconds <= AHEAD_SECONDS / 2 and worker.jobs <= AHEAD_JOBS // 2:
                return worker
        return None

    def expected_seconds(self, handler: str) -> float:
        """How long a job of a handler will probably keep a worker; infinite while none has ended."""
        return self._typical_seconds.get(handler, inf)

    def fits(self, worker: WorkerProcess, jobs: Sequence[GivenJob], handler: str, args_bytes: int) -> bool:
        """True when a job may be given to the worker together with these: the first job of an idle worker, or one that will
        begin soon."""
        count = worker.jobs + len(jobs)
        load = worker.load_seconds + sum(each.expected_seconds for each in jobs)
        return not count or (
            count < AHEAD_JOBS
            and load + self.expected_seconds(handler) <= AHEAD_SECONDS
            and args_bytes + sum(len(each.job.args) for each in jobs) <= _AHEAD_BYTES
        )

    def share_of(self, waiting: int) -> int:
        """How many of so many waiting jobs one worker should get at most."""
        workers = max(sum(worker.usable or worker.takes_more for worker in self._shared), 1)
        return -(-waiting // workers)

    def give(self, worker: WorkerProcess, jobs: Sequence[GivenJob]) -> None:
        """Give jobs to the worker that ``room`` has returned; their callbacks say what becomes of them."""
        if self._free and self._free[-1] is worker:
            self._free.pop()
        worker.give(jobs)

    def stop(self, given: GivenJob) -> None:
        """Have a job come back, or, if it has begun, stop it."""
        if given.worker is not None:
            given.worker.stop(given, ResultKind.CANCELLED)

    def take_back(self, given: GivenJob) -> None:
        """Have a job come back unless it has begun."""
        if given.worker is not None:
            given.worker.take_back_one(given)

    def note_run(self, handler: str, result: AttemptResult) -> None:
        """Learn how long jobs of a handler take."""
        seconds = result.ran_us / 1e6 + _JOB_SECONDS
        before = self._typical_seconds.get(handler, seconds)
        # A longer run counts in full: jobs behind it would wait.
        share = 1.0 if seconds > 4 * before else _NEWEST_SHARE
        self._typical_seconds[handler] = before + share * (seconds - before)

    def take_back_stalled(self, now: float) -> None:
        """Have workers return the jobs that have not begun in time; called often while there are any."""
        for worker in self._shared:
            if worker.jobs > 1:
                worker.take_back(now - _STALLED_SECONDS)

    def warm(self, count: int) -> None:
        """Start so many workers before the first job, at most the size of the pool."""
        self._grow(count)

    async def run_alone(self, job: ProcessJob, begin: MayBegin = _at_once) -> AttemptResult:
        """Run one attempt in a fresh process that ends afterwards, so that only this job can have caused its crash. Takes
        handlers of every mode."""
        try:
            async with self._alone:
                worker = await self._start_process(lambda worker: worker.leave("it has run its one job"))
                begins = False
                try:
                    begins = await begin() and worker.usable
                finally:
                    if not begins:
                        worker.leave("its one job did not begin")
                return (await worker.run(job) or DIED_BEFORE) if begins else _TOO_LATE
        except WorkerStartFailed as error:
            return AttemptResult(kind=ResultKind.NOT_STARTED, error=error.info)

    # ------------------------------------------------------------ the end

    def kill_all(self) -> None:
        """SIGKILL every worker and all processes that it has started, now: the lease is about to end."""
        for process in list(self._processes):
            process.kill()

    async def close(self) -> None:
        """Accept no more jobs, stop running jobs (ask first, then kill), end the workers. No process is left afterwards."""
        self._closing.set()
        self._launcher.refuse()
        for waiter in self._take_waiters():
            waiter.set_exception(_closed())
        while self._processes or self._starters:
            for process in self._processes:
                process.finish("the pool is closed")
            waits = [self._loop.create_task(process.wait_gone()) for process in self._processes]
            await asyncio.wait([*waits, *self._starters])
        await self._launcher.close()

    # ------------------------------------------------------------ assigning workers to jobs

    async def _next_worker(self) -> WorkerProcess:
        while not self._closing.is_set():
            worker = self._free.pop() if self._free else await self._wait_for_worker()
            if worker.usable:
                return worker
        raise _closed()

    async def _wait_for_worker(self) -> WorkerProcess:
        waiter: asyncio.Future[WorkerProcess] = self._loop.create_future()
        self._waiters.append(waiter)
        self._grow()
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self._became_idle(waiter.result())
            raise

    def _has_room(self) -> None:
        self.on_room()

    def _take_waiters(self) -> Iterator[asyncio.Future[WorkerProcess]]:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                yield waiter

    def _became_idle(self, worker: WorkerProcess) -> None:
        if self._closing.is_set() or not worker.usable:
            worker.finish("the pool is closed")
            return
        for waiter in self._take_waiters():
            waiter.set_result(worker)
            return
        self._free.append(worker)  # last in, first out: warm caches
        self.on_room()

    def _went(self, worker: WorkerProcess) -> None:
        self._processes.discard(worker)
        self._shared.discard(worker)
        if worker in self._free:
            self._free.remove(worker)
        self._grow()
        self.on_room()

    # ------------------------------------------------------------ starting workers

    def _grow(self, at_least: int = 0) -> None:
        """Start workers while more jobs wait than workers start, up to the size of the pool."""
        # A worker that cleans up after its job is ready sooner than a new one.
        waiting = sum(not waiter.done() for waiter in self._waiters)
        waiting -= sum(worker.cleaning_up for worker in self._shared)
        waiting = max(waiting, at_least - len(self._shared))
        while self._starting < min(waiting, self._size - len(self._shared)) and not self._closing.is_set():
            self._starting += 1
            task = self._loop.create_task(self._start_shared(), name="jobmaster-worker-start")
            self._starters.add(task)
            task.add_done_callback(self._starters.discard)

    async def _start_shared(self) -> None:
        worker: WorkerProcess | None = None
        try:
            worker = await self._start_process(self._became_idle)
        except WorkerStartFailed as error:
            for waiter in self._take_waiters():
                waiter.set_exception(error)
                break
        finally:
            self._starting -= 1
        if worker is not None:
            self._shared.add(worker)
            self._became_idle(worker)
        self._grow()

    async def _start_process(self, on_idle: Callable[[WorkerProcess], None]) -> WorkerProcess:
        # After a failed start the next one waits, so that a broken module does not start processes in a loop.
        if (seconds := self._not_before - self._now()) > 0:
            try:
                async with asyncio.timeout(seconds):
                    await self._closing.wait()
            except TimeoutError:
                pass
        if self._closing.is_set():
            raise _closed()
        worker = WorkerProcess(
            self._launcher,
            self._limits,
            self._logger,
            self._now,
            on_idle,
            self._went,
            self._on_output,
            self._on_report,
        )
        worker.on_room = self._has_room
        self._processes.add(worker)
        try:
            await worker.start()
        except WorkerStartFailed as error:
            self._failures += 1
            delay = backoff_delay(self._failures, _START_AGAIN_SECONDS, _START_AGAIN_SECONDS_MAX)
            self._not_before = self._now() + delay
            self._logger.error("a worker process did not start (%d in a row): %s", self._failures, error)
            raise
        self._failures = 0
        return worker


def _closed() -> WorkerStartFailed:
    text = "the pool of worker processes is closed"
    return WorkerStartFailed(ErrorInfo(type="PoolClosed", message=text, reason="crashed"))


DIED_BEFORE = AttemptResult(
    kind=ResultKind.CRASHED,
    error=ErrorInfo(type="WorkerDied", message="every worker process that was given the job ended", reason="crashed"),
)
_TOO_LATE = AttemptResult(
    kind=ResultKind.NOT_STARTED,
    error=ErrorInfo(type="LeaseInDoubt", message="the lease was in doubt when its process was ready", reason="crashed"),
)
