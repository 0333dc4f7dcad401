"""``Cluster`` over rows in memory: its checks, options, receipts and lookups are those of the product."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable
from types import TracebackType
from typing import Any, Unpack

from jobmaster.client.bulk import BulkSummary
from jobmaster.client.cluster import Cluster
from jobmaster.client.jobs.changes import ChangeOptions
from jobmaster.client.jobs.existence import not_found
from jobmaster.client.jobs.job_refs import JobRef
from jobmaster.client.jobs.result_waiter import ResultWaiter
from jobmaster.client.options import BulkOptions, SubmitOptions
from jobmaster.client.receipts import JobReceipt
from jobmaster.client.signals.wait import waits
from jobmaster.client.transactions import ClusterTransaction
from jobmaster.codec import decode_headers
from jobmaster.handlers import Handler, Handlers
from jobmaster.handlers.lifespan import Lifespan
from jobmaster.model.errors import JobMasterError, WaitTimeout
from jobmaster.model.job import JobState, NewJob
from jobmaster.model.job_change import JobChange
from jobmaster.settings.model import ClusterSettings
from jobmaster.testing.memory.agent import GivenByTest, MemoryAgent, Run, current_run
from jobmaster.testing.memory.master import MemoryMaster
from jobmaster.testing.memory.rows import MemoryJob, MemoryRows
from jobmaster.testing.memory.signals import MemorySignals
from jobmaster.testing.memory.store import MemoryStore

ATTEMPTS_MAX = 10_000
"""Attempts of one run of jobs: more are taken for a handler that submits itself again without end."""
WAIT_SECONDS = 5.0
"""Longest wait for a job that another part of the test has to run."""
_POLL_SECONDS = 0.005


class MemoryJobs:
    """The jobs of one test, the handlers that run them, and when they run.

    Attributes:
        inline: jobs that are due run before their submit returns.
        given: connection and resources for the handlers, where the test has them.
        handlers: those that the jobs run with.
        ended: the test is over; further submits are refused.
    """

    def __init__(self, settings: ClusterSettings, handlers: Handlers) -> None:
        self.settings = settings
        self.handlers = handlers
        self.rows = MemoryRows(settings)
        self.inline = False
        self.ended = False
        self.given = GivenByTest()

    def open(self, settings: ClusterSettings | None = None, handlers: Handlers | None = None) -> MemoryCluster:
        """A producer's cluster on the running event loop.

        Args:
            settings: those of the producer; their lanes are served.
            handlers: those that the producer knows; they run here, too.
        """
        if settings is not None:
            self.rows.serve(settings)
        if handlers is not None and handlers is not self.handlers:
            self.handlers.merge(handlers)
        return MemoryCluster(self, settings or self.settings, handlers if handlers is not None else self.handlers)

    def refuse_ended(self) -> None:
        """``JobMasterError`` once the test is over: a cluster that outlives it has no jobs to add to."""
        if self.ended:
            raise JobMasterError(
                "this cluster was opened in a test that has ended",
                hint="open one in each test that uses the fixture jobs, or use connect_sync(), which opens its cluster anew",
            )

    @property
    def runs_what_is_awaited(self) -> bool:
        """A wait runs the jobs that it waits for: in inline mode, and inside handlers."""
        return self.inline or current_run() is not None

    async def run_submitted(self, job_ids: Iterable[bytes]) -> None:
        """In inline mode: run these jobs, if they are due. What a handler submits runs after it, unless it waits for it.

        Other jobs are left to the coroutines that have submitted them: each may hold what its own job needs.
        """
        if not self.inline:
            return
        if (run := current_run()) is not None:
            run.add(job_ids)
            return
        wanted = set(job_ids)
        await self.run(None, wanted)
        # One that runs elsewhere: by a `drain` at the same time, or by another submit with the same idempotency key.
        for _ in range(round(WAIT_SECONDS / _POLL_SECONDS)):
            if not self.rows.any_runs(wanted):
                return
            await asyncio.sleep(_POLL_SECONDS)

    async def run(self, until_us: int | None, wanted: set[bytes] | None = None) -> int:
        """Run jobs one after another until none is due; number of attempts.

        Args:
            until_us: latest due time; ``None``: the present.
            wanted: ids; ``None``: all jobs.

        Raises:
            JobMasterError: a handler submits itself again without end.
        """
        rows, ran, run = self.rows, 0, Run(wanted)
        agents: dict[Lifespan | None, MemoryAgent] = {}

        def runnable(job: MemoryJob) -> bool:
            if not run.wants(job.entry.id):
                return False
            return job.entry.handler in self.handlers and rows.bucket_of(job.lane, job.priority) is not None

        def next_job() -> MemoryJob | None:
            rows.batches.end_full()  # before the clock is read: callbacks are due at once
            return rows.take(rows.clock.wall_us() if until_us is None else until_us, runnable)

        try:
            while (job := next_job()) is not None:
                ran += 1
                if ran > ATTEMPTS_MAX:
                    job.state = JobState.HELD
                    raise JobMasterError(
                        f"{ATTEMPTS_MAX} attempts ran, and jobs of handler {job.entry.handler!r} are still due",
                        hint="does the handler submit itself again without a later due time?",
                    )
                handler = self.handlers.get(job.entry.handler)
                assert handler is not None
                agent = agents.get(handler.lifespan)
                if agent is None:
                    agent = agents[handler.lifespan] = await self._agent_of(handler, run)
                with rows.clock.at_least(job.due_us):
                    await agent.run(job, handler)
        finally:
            run.over = True
            for agent in agents.values():
                await agent.aclose()
        return ran

    async def _agent_of(self, handler: Handler, run: Run) -> MemoryAgent:
        """An agent for the handlers that have the same lifespan."""
        return await MemoryAgent.open(
            self.rows, [one for one in self.handlers if one.lifespan is handler.lifespan], self.given, run
        )


class MemoryCluster(Cluster):
    """A producer's cluster in memory. Made by ``MemoryJobs.open``."""

    def __init__(self, jobs: MemoryJobs, settings: ClusterSettings, handlers: Handlers) -> None:
        rows = jobs.rows
        stores = {name: MemoryStore(rows) for name in settings.stores}
        super().__init__(settings, MemoryMaster(rows, jobs.handlers), stores, handlers=handlers, clock=rows.clock)
        self._jobs = jobs

    async def submit(self, handler: Any, args: Any = None, /, **options: Unpack[SubmitOptions]) -> JobReceipt[Any]:
        """As ``Cluster.submit``; in inline mode the job runs before this returns, if it is due."""
        self._jobs.refuse_ended()
        receipt: JobReceipt[Any] = await super().submit(handler, args, **options)
        await self._jobs.run_submitted([receipt.id_bytes])
        return receipt

    async def submit_many(self, items: Any, /, handler: Any = None, **options: Unpack[BulkOptions]) -> BulkSummary:
        """As ``Cluster.submit_many``; in inline mode the jobs run before this returns."""
        self._jobs.refuse_ended()
        summary = await super().submit_many(items, handler, **options)
        await self._jobs.run_submitted(summary.ids.as_bytes())
        return summary

    async def change(self, job: JobRef, *, actor: str = "client", **options: Unpack[ChangeOptions]) -> JobChange:
        """As ``Cluster.change``; in inline mode the job runs before this returns, if it is due."""
        change = await super().change(job, actor=actor, **options)
        await self._jobs.run_submitted([change.id_bytes])
        return change

    def transaction(self, connection: Any) -> ClusterTransaction:
        """As ``Cluster.transaction``: the jobs count when, and only if, the transaction is committed."""
        return _MemoryTransaction(self, connection, self._jobs)

    def _open_waiter(self) -> ResultWaiter:
        self._refuse_closed()
        if self._waiter is None:
            self._waiter = _MemoryWaiter(self._jobs)
        return self._waiter


class _MemoryTransaction(ClusterTransaction):
    """Jobs that wait for the caller's commit."""

    def __init__(self, cluster: MemoryCluster, connection: Any, jobs: MemoryJobs) -> None:
        super().__init__(cluster, connection)
        self._jobs = jobs
        self._key = id(connection)
        self._outermost = True
        self._before = 0
        """Jobs of the transaction around this one."""

    async def __aenter__(self) -> _MemoryTransaction:
        await super().__aenter__()
        uncommitted = self._jobs.rows.uncommitted
        self._outermost = self._key not in uncommitted
        self._before = len(uncommitted.setdefault(self._key, []))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        rows, committed = self._jobs.rows, False
        new: list[NewJob] = []
        try:
            await super().__aexit__(kind, error, trace)
            committed = kind is None
        finally:
            if not committed:
                del rows.uncommitted[self._key][self._before :]
            if self._outermost:
                new = rows.uncommitted.pop(self._key)
                signals = MemorySignals(rows)
                for job in new:
                    (signals.insert if waits(decode_headers(job.headers)) else rows.insert)(job)
        await self._jobs.run_submitted([job.id for job in new])


class _MemoryWaiter(ResultWaiter):
    """Waits by looking at the rows, and runs what is awaited where nothing else would."""

    def __init__(self, jobs: MemoryJobs) -> None:
        self._jobs = jobs

    async def each(
        self,
        job_ids: Iterable[bytes],
        reached: Callable[[JobState | None], bool],
        timeout: float | None,
        doubtful: Iterable[bytes] = (),
    ) -> AsyncGenerator[dict[bytes, JobState | None], None]:
        """See ``ResultWaiter.each``."""
        pending, rows = set(job_ids), self._jobs.rows
        rows.save(pending)
        patience = WAIT_SECONDS if timeout is None else min(timeout, WAIT_SECONDS)
        ends = rows.clock.boottime() + patience
        while pending:
            states = {job_id: None if (job := rows.jobs.get(job_id)) is None else job.state for job_id in pending}
            found = {job_id: state for job_id, state in states.items() if reached(state)}
            pending.difference_update(found)
            if found:
                yield found
                continue
            missing = [job_id for job_id in doubtful if job_id in pending and states[job_id] is None]
            if missing:
                raise not_found(missing)
            if self._jobs.runs_what_is_awaited:
                horizon = float("inf") if timeout is None else rows.clock.wall_us() + timeout * 1e6
                if await self._jobs.run(int(min(horizon, 2**62)), pending):
                    continue
            if rows.clock.boottime() >= ends:
                raise self._waited_in_vain(len(pending), patience)
            await asyncio.sleep(_POLL_SECONDS)

    def _waited_in_vain(self, count: int, patience: float) -> WaitTimeout:
        message = f"{count} of the jobs did not get there within {patience:g} s"
        if self._jobs.inline:
            return WaitTimeout(message, hint="a job that is due later than the time-out does not run in inline mode")
        return WaitTimeout(message, hint="jobs run when the test calls `await jobs.drain()`, or in inline mode")

    async def close(self) -> None:
        """Nothing is open."""
