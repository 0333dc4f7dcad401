"""Runs the jobs of a cluster in memory with the parts of an agent: executor, dispatcher, threads and outcomes.

What an agent writes to the master becomes the job's row in memory. Handlers of mode ``process`` run in this process: async
ones on the loop, plain ones in a thread. The lifespans of the handlers are entered, unless the test gives the resources.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterable, Sequence
from contextvars import ContextVar
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from jobmaster.handlers import Handler, JobContext
from jobmaster.handlers.lifespan import Lifespan, OpenLifespans
from jobmaster.handlers.middleware import Around
from jobmaster.handlers.signature import read_signature
from jobmaster.model.errors import JobMasterError
from jobmaster.model.ids import AgentId, BucketId, Fence
from jobmaster.model.job import FinalRow, HoldRow, JobState, RunMode
from jobmaster.rules.lease import Term
from jobmaster.settings.model import AgentSettings
from jobmaster.telemetry import Telemetry
from jobmaster.testing.memory.rows import MemoryJob, MemoryProgress, MemoryRows, Unconfirmed
from jobmaster.testing.memory.transactions import CallerTransactions
from jobmaster_agents.call_retry import UntilAnswered
from jobmaster_agents.event_log import EventLog
from jobmaster_agents.execute.dispatch import Dispatcher
from jobmaster_agents.execute.executor import Executor
from jobmaster_agents.execute.log_records import keep_logs, keep_records
from jobmaster_agents.execute.process_pool.pool import ProcessPool
from jobmaster_agents.execute.thread_pool import ThreadPool
from jobmaster_agents.execute.transactional.runner import TransactionalRunner
from jobmaster_agents.execute.transactional.settlement import TransactionSettlement
from jobmaster_agents.outcomes.outcome_builder import OutcomeBuilder
from jobmaster_agents.state.job_table import ClaimedJob, ClaimedList
from jobmaster_agents.state.limited_starts import LimitedStarts
from jobmaster_agents.state.ownership import OwnedBucket, Ownership
from jobmaster_agents.state.progress import Progress

_FOREVER = Term(float("inf"), float("inf"), float("inf"))
_TELEMETRY = Telemetry()
"""One for all: nothing reads it, and it costs a twentieth of an attempt."""
_CLOSE_SECONDS = 0.5
"""For threads whose handlers do not return."""
_LEAVE_SECONDS = 10.0
"""For lifespans."""


class GivenByTest(NamedTuple):
    """What a test gives to the handlers in place of what an agent has.

    Attributes:
        connection: what ``ctx.transaction()`` gives; ``None``: it is refused.
        resources: what ``ctx.resources`` is; ``None``: the lifespans are entered.
    """

    connection: Any = None
    resources: Any = None


class Run:
    """One run of jobs. Handlers that run in it find it with ``current_run``, in their tasks and threads too.

    Attributes:
        wanted: ids of the jobs that it runs; ``None``: all.
        over: it takes no more jobs.
    """

    def __init__(self, wanted: Iterable[bytes] | None = None) -> None:
        self.wanted = None if wanted is None else set(wanted)
        self.over = False

    def wants(self, job_id: bytes) -> bool:
        """The job is one of this run."""
        return self.wanted is None or job_id in self.wanted

    def add(self, job_ids: Iterable[bytes]) -> None:
        """Jobs that one of its handlers has submitted."""
        if self.wanted is not None:
            self.wanted.update(job_ids)


_run: ContextVar[Run | None] = ContextVar("jobmaster_testing_run", default=None)


def current_run() -> Run | None:
    """The run whose handler calls this; ``None`` outside of handlers, and in what a handler has left behind."""
    run = _run.get()
    return None if run is None or run.over else run


class MemoryAgent:
    """The one agent of a cluster in memory. Belongs to the running event loop; made by ``open``, ended by ``aclose``."""

    @classmethod
    async def open(
        cls, rows: MemoryRows, handlers: Iterable[Handler], given: GivenByTest, run: Run | None = None
    ) -> MemoryAgent:
        """Enter the lifespans of the handlers that it will run, and start.

        Args:
            run: what the handlers find as ``current_run``.

        Raises:
            ConfigError: a lifespan failed; it is named with its line.
        """
        handlers = tuple(handlers)
        if keep_logs(handlers):
            keep_records()
        keeps = given.resources is None
        lifespans = OpenLifespans(
            [in_process(handler, keeps_lifespan=keeps) for handler in handlers],
            AgentSettings().lifespan_timeout_seconds,
        )
        await lifespans.open()
        # What a lifespan has set in context variables reaches the handlers.
        context = lifespans.context
        context.run(_run.set, run)
        return context.run(cls, rows, lifespans, given)

    def __init__(self, rows: MemoryRows, lifespans: OpenLifespans, given: GivenByTest) -> None:
        settings, clock = rows.settings, rows.clock
        self._rows, self._lifespans = rows, lifespans
        self._keeps_lifespans = given.resources is None
        self._clock = clock
        self._ended: dict[bytes, asyncio.Future[None]] = {}
        self._running: dict[bytes, MemoryJob] = {}
        self._opened: dict[bytes, OwnedBucket] = {}
        self._ownership = ownership = Ownership(rows.owner)
        ownership.trust(_FOREVER)
        outcomes = _Outcomes(
            self,
            given,
            settings.jobs,
            settings.limits,
            settings.thresholds.transient_threshold_seconds,
            clock,
            random.Random(),
        )
        outcomes.progress_sink = MemoryProgress(rows)
        outcomes.log_sink = rows.job_logs
        outcomes.resources = lifespans.resources
        self.refused = 0
        self.until_answered = UntilAnswered(ownership, clock, EventLog({}), Progress(clock.boottime))
        telemetry = _TELEMETRY
        settlement = TransactionSettlement(self, self, outcomes, clock, telemetry)
        source = CallerTransactions(given.connection, rows)
        transactional = TransactionalRunner(source, settlement, outcomes, ownership, clock, telemetry)
        agent = AgentSettings()
        threads = ThreadPool(agent.threads, clock.boottime)
        self._limits = LimitedStarts(clock.boottime)  # every start has its permits: one job runs at a time
        self._dispatcher = Dispatcher(
            threads,
            _no_processes(rows),
            outcomes,
            ownership,
            clock,
            _authorise,
            thread_jobs=agent.threads,
            process_jobs=1,
            transactional=transactional,
            transactional_jobs=agent.threads,
            limits=self._limits,
            on_overdue=lambda job, seconds: None,
            on_detached=lambda job, cause, seconds: None,
            on_failure=self._fail,
        )
        self._executor = Executor(
            agent,
            0.0,
            clock,
            ownership,
            outcomes,
            self._dispatcher,
            _authorise,
            lambda bucket_id: None,
            on_overdue=lambda job, seconds: None,
            on_detached=lambda job, cause, seconds: None,
            limits=self._limits,
        )

    async def run(self, job: MemoryJob, handler: Handler) -> None:
        """One attempt of a job in a served lane, to its outcome."""
        owned = self._owned(job)
        claimed_list = ClaimedList(owned, "memory", self._clock.boottime(), self._clock.wall_us())
        local = in_process(handler, keeps_lifespan=self._keeps_lifespans)
        claimed = ClaimedJob(job.entry, claimed_list, local)
        claimed.cancelled = job.cancel_requested
        job_id = job.entry.id
        job.raised = None
        self._running[job_id] = job
        self._ended[job_id] = ended = asyncio.get_running_loop().create_future()
        try:
            self._executor.enqueue([claimed])
            await ended
        finally:
            del self._ended[job_id], self._running[job_id]
            self._limits.settled([claimed])

    async def aclose(self) -> None:
        """End slots and threads, and leave the lifespans.

        Raises:
            JobMasterError: a lifespan failed while it was left.
        """
        await self._executor.aclose()
        await self._dispatcher.aclose(_CLOSE_SECONDS)
        if (why := await self._lifespans.close(_LEAVE_SECONDS)) is not None:
            raise JobMasterError(f"a lifespan of the handlers could not be left: {why}")

    def _owned(self, job: MemoryJob) -> OwnedBucket:
        """The bucket of the job's lane and priority."""
        bucket = self._rows.bucket_of(job.lane, job.priority)
        assert bucket is not None, "jobs of other lanes and priorities do not run"
        owned = self._opened.get(bucket.id)
        if owned is None:
            fence = Fence(BucketId(bucket.id), bucket.epoch, AgentId(bucket.owner))
            owned = self._opened[bucket.id] = OwnedBucket(fence, bucket.lane, bucket.priority, bucket.store)
            self._executor.open(owned)
        return owned

    def _fail(self, error: BaseException) -> None:
        for ended in self._ended.values():
            if not ended.done():
                ended.set_exception(error)

    def _settle(self, job_id: bytes) -> None:
        ended = self._ended.get(job_id)
        if ended is not None and not ended.done():
            ended.set_result(None)

    # ------------------------------------------------------------ sink of outcomes

    def final(self, job: ClaimedJob) -> None:
        """The job has ended."""
        assert isinstance(job.row, FinalRow)
        self.recorded(job.row)
        if job.row.state in (JobState.SUCCEEDED, JobState.FAILED):
            self._counted(job, job.row.error)
        self._settle(job.row.id)

    def hold(self, job: ClaimedJob, *, here: bool) -> None:
        """The job waits for another attempt."""
        assert isinstance(job.row, HoldRow)
        with self._rows.lock:
            self._running[job.row.id].held(job.row, here=here)
        if job.row.error is not None:
            self._counted(job, job.row.error)
        self._settle(job.row.id)

    def _counted(self, job: ClaimedJob, error: bytes | None) -> None:
        """A run counts for the circuit breaker of its handler."""
        if job.handler is not None and (breaker := job.handler.options.breaker) is not None:
            self._rows.breakers.ended(breaker, error)

    def raised(self, job_id: bytes, error: BaseException) -> None:
        """Keep what the handler raised."""
        self._running[job_id].raised = error

    # ------------------------------------------------------------ recorder and rows of attempts that record themselves

    def recorded(self, row: FinalRow) -> None:
        """The outcome is in the row."""
        with self._rows.lock:
            self._running[row.id].concluded(row)

    def settle_accepted(self, jobs: list[ClaimedJob]) -> None:
        """Their rows have what was sent."""
        for job in jobs:
            self._counted(job, None)
            self._settle(job.entry.id)

    def settle_refused(self, job: ClaimedJob) -> None:
        """The row was confirmed from outside."""
        self._settle(job.entry.id)

    async def is_recorded(self, row: FinalRow) -> bool:
        """The row shows this success."""
        return self._running[row.id].state is JobState.SUCCEEDED

    async def mark_refused(self, rows: Sequence[FinalRow]) -> None:
        """Nothing to note."""

    async def await_confirmation(
        self, row: FinalRow, within_seconds: float, pause_seconds: float, error: bytes | None
    ) -> bool:
        """The job waits for a confirmation from outside."""
        job = self._running[row.id]
        with self._rows.lock:
            if job.state is JobState.SUCCEEDED:
                return False
            job.state = JobState.WAITING
            job.ran_us = row.ran_us
            until_us = self._clock.wall_us() + int(within_seconds * 1e6)
            job.unconfirmed = Unconfirmed(until_us, int(pause_seconds * 1e6), error)
        return True


class _Outcomes(OutcomeBuilder):
    """Gives the resources of the test, and keeps the errors of handlers for it."""

    def __init__(self, agent: MemoryAgent, given: GivenByTest, *wiring: Any) -> None:
        super().__init__(agent, *wiring)
        self._agent = agent
        self._given = given.resources

    def context(self, job: ClaimedJob, deadline: float) -> JobContext:
        context = super().context(job, deadline)
        if self._given is not None:
            context.resources = self._given
        return context

    def raised(self, job: ClaimedJob, error: BaseException, started: float, ended: float) -> None:
        self._agent.raised(job.entry.id, error)
        super().raised(job, error, started, ended)


def _no_processes(rows: MemoryRows) -> ProcessPool:
    """A pool that gets no job: ``in_process`` has changed the mode of every handler."""
    limits = rows.settings.limits
    logger = logging.getLogger(__name__)
    return ProcessPool(
        [], 1, result_bytes=limits.result_bytes, error_bytes=limits.error_bytes, logger=logger, clock=rows.clock
    )


async def _authorise(job: ClaimedJob) -> bool:
    """Every start is authorised: there is no other agent."""
    return True


def in_process(handler: Handler, *, keeps_lifespan: bool = True) -> Handler:
    """The same handler, for this process, and without its lifespan where the test gives the resources."""
    lifespan = handler.lifespan if keeps_lifespan else None
    if handler.options.mode is not RunMode.PROCESS and lifespan is handler.lifespan:
        return handler
    return _copied(handler, lifespan, handler.around)


@lru_cache(4096)
def _copied(handler: Handler, lifespan: Lifespan | None, around: tuple[Around, ...]) -> Handler:
    options = handler.options
    if options.mode is RunMode.PROCESS:
        options = msgspec.structs.replace(options, mode=RunMode.ASYNC if handler.is_async else RunMode.THREAD)
    signature = read_signature(handler.function, handler.name)
    return Handler(handler.name, handler.function, options, signature, lifespan, around)
