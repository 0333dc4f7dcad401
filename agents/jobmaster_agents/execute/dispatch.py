"""Dispatches handlers that do not run in a slot: mode ``thread`` to threads, mode ``process`` (and jobs rescued too often) to
worker processes, ``transactional`` handlers to tasks of their own, at most one per connection for transactions.

A job that one more rescue would end runs alone in a process of its own, whatever the mode of its handler. A job waits here,
not started, until its kind has room and, for processes, a worker is ready. Its time-out counts from its start, and the lease
(or the store) authorises the start at that moment.

A job whose start needs an accepted PROCESSING write (``start="fenced"``, ``delivery="at_most_once"``, rescued before) is
written at that moment and not earlier: after a crash the master shows as begun only jobs that began. So only the job that
caused a crash can reach ``max_rescues``, and a job delivered at most once is abandoned only if it may have begun.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from math import inf
from typing import TYPE_CHECKING, Any

from jobmaster.clock import Clock
from jobmaster.handlers import JobContext
from jobmaster.handlers.current import set_running
from jobmaster.model.errors import Unavailable
from jobmaster.model.job import RunMode
from jobmaster_agents.execute.attempt_result import AttemptResult
from jobmaster_agents.execute.bucket_queues import OnDetached, OnOverdue
from jobmaster_agents.execute.dispatched_job import ConcurrencyLimit, DispatchedJob, Done
from jobmaster_agents.execute.process_jobs import NOT_STARTED_PAUSE_SECONDS, make_process_job, record_result
from jobmaster_agents.execute.process_pool.pool import DEATHS_MAX, DIED_BEFORE, ProcessPool
from jobmaster_agents.execute.process_pool.protocol import ProcessJob
from jobmaster_agents.execute.process_pool.worker_process import GivenJob
from jobmaster_agents.execute.stopping import CANCEL_AGAIN_SECONDS, should_detach
from jobmaster_agents.execute.thread_pool import ThreadPool, TooLate
from jobmaster_agents.execute.transactional.runner import TransactionalRunner, is_current_task
from jobmaster_agents.outcomes.outcome_builder import (
    OutcomeBuilder,
    StopCause,
    is_at_most_once,
    needs_master,
    needs_write,
    warn_after_seconds,
)
from jobmaster_agents.state.job_table import ClaimedJob, JobPhase
from jobmaster_agents.state.limited_starts import LimitedStarts, has_limits
from jobmaster_agents.state.ownership import OwnedBucket, Ownership

if TYPE_CHECKING:
    from jobmaster_agents.execute.run_spans import RunSpans

_THREAD_JOBS_AHEAD = 64
"""Jobs that lie with the threads beside those that may run: short ones then follow one another without a turn of the loop."""
_CLOSE_SECONDS = 10.0
"""For workers to be killed and transactions to be rolled back when the process ends."""


class Dispatcher:
    """Runs jobs in threads, worker processes and tasks of their own.

    Args:
        authorise: awaits an accepted PROCESSING write; False: do not run, None: not now.
        thread_jobs, process_jobs, transactional_jobs: jobs of each kind that run at once; jobs that run alone have a limit of
            ``process_jobs`` of their own.
        limits: jobs without a permit end their wait here, and wait aside.
        on_overdue: called for each attempt that becomes overdue.
        on_detached: called for each handler in a task that does not stop.
        on_failure: called with an error of our own code in the task of a job: an invariant is broken.
        spans: spans of runs in worker processes.
    """

    def __init__(
        self,
        threads: ThreadPool,
        pool: ProcessPool,
        outcome_builder: OutcomeBuilder,
        ownership: Ownership,
        clock: Clock,
        authorise: Callable[[ClaimedJob], Coroutine[object, object, bool | None]],
        *,
        thread_jobs: int,
        process_jobs: int,
        transactional: TransactionalRunner,
        transactional_jobs: int,
        limits: LimitedStarts,
        on_overdue: OnOverdue,
        on_detached: OnDetached,
        on_failure: Callable[[BaseException], None],
        spans: RunSpans | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._threads = threads
        self._pool = pool
        self._outcome_builder = outcome_builder
        self._ownership = ownership
        self._now = clock.boottime
        self._in_threads = ConcurrencyLimit(thread_jobs)
        self._in_processes = ConcurrencyLimit(process_jobs)
        self._alone = ConcurrencyLimit(process_jobs)
        self._authorise = authorise
        self._permits = limits
        self._in_tasks = ConcurrencyLimit(transactional_jobs)
        self._transactional = transactional
        self._limits = {
            RunMode.THREAD: self._in_threads,
            RunMode.PROCESS: self._in_processes,
            RunMode.ASYNC: self._in_tasks,
        }
        pool.on_room = functools.partial(self._admit_soon, self._in_processes)
        self._dispatched: dict[ClaimedJob, DispatchedJob] = {}
        self._given_jobs: dict[DispatchedJob, GivenJob] = {}
        """Jobs that lie with a worker process, and may have begun there."""
        self._stuck: set[DispatchedJob] = set()
        self._rollbacks: set[asyncio.Task[None]] = set()
        self._on_overdue = on_overdue
        self._on_detached = on_detached
        self._on_failure = on_failure
        self._spans = spans
        self._context = copy_context()
        """The context variables of the agent; every job starts with a copy."""

    # ------------------------------------------------------------ interface of the executor

    def start(self, job: ClaimedJob, done: Done) -> None:
        """Run the job when there is room. Its outcome is passed on before ``done`` is called on the loop."""
        handler = job.handler
        assert handler is not None
        limit = self._alone if self._outcome_builder.runs_alone(job) else self._limits[handler.options.mode]
        dispatched = self._dispatched[job] = DispatchedJob(job, done, limit, self._make_context)
        limit.waiting.append(dispatched)
        if limit is self._in_processes or (limit is self._in_threads and limit.admitted):
            self._admit_soon(limit)  # jobs of one turn of the loop travel together
        else:
            self._admit(limit)

    def stop(self, job: ClaimedJob, cause: StopCause) -> None:
        """Kill the worker process, cancel the task, or quarantine the thread (its late result is dropped)."""
        dispatched = self._dispatched.get(job)
        if dispatched is None or dispatched.cause is not None:
            return
        if dispatched.thread is not None:
            if not self._threads.quarantine(dispatched.thread) and dispatched.thread.started_at is not None:
                return  # it has just ended: its result counts
            self._note_start(dispatched)
        dispatched.cause = cause
        if dispatched.context is not None:
            dispatched.context.cancelled = True
        now = self._now()
        if (given := self._given_jobs.get(dispatched)) is not None:
            self._pool.stop(given)
            return
        if dispatched.task is not None:
            if dispatched.on_loop:
                dispatched.stop_requested_at, dispatched.stop_repeat_at = now, now + CANCEL_AGAIN_SECONDS
            dispatched.task.cancel()
            return
        if not dispatched.admitted and dispatched in dispatched.limit.waiting:
            dispatched.limit.waiting.remove(dispatched)
        self._stopped(dispatched, now)
        # Admit waiting jobs only after this turn: another job that is stopped in the same turn must not take the free place.
        self._finish(dispatched, then=self._admit_soon)

    def give_back(self, job: ClaimedJob) -> None:
        """Give a job back that waits (``is_waiting``). A worker process that has begun it meanwhile is not disturbed."""
        dispatched = self._dispatched.get(job)
        if dispatched is None or dispatched.cause is not None:
            return
        if (given := self._given_jobs.get(dispatched)) is None:
            self.stop(job, StopCause.RELEASE)
        elif not dispatched.started:
            dispatched.goes_back = True
            self._pool.take_back(given)

    def take_back(self, owned: OwnedBucket) -> None:
        """The bucket is frozen: its jobs that lie with threads or worker processes, and have not begun, wait here again."""
        for dispatched in list(self._dispatched.values()):
            if dispatched.job.claimed_list.owned.present is owned:
                self._withdraw(dispatched)
        self._pool.take_back_stalled(inf)

    def sweep(self, now: float) -> None:
        """Stop jobs past their deadline; admit jobs that waited for the lease."""
        for dispatched in list(self._dispatched.values()):
            self._note_start(dispatched)
            if dispatched.started and now >= dispatched.overdue_at:
                dispatched.overdue_at = inf
                self._on_overdue(dispatched.job, now - dispatched.started)
            if dispatched.started and dispatched.cause is None and now >= dispatched.deadline:
                self.stop(dispatched.job, StopCause.TIMEOUT)
            elif dispatched.stop_requested_at and not dispatched.is_ending and dispatched.cause is not None:
                if should_detach(dispatched.cause, now - dispatched.stop_requested_at):
                    self._detach(dispatched, dispatched.cause, now)
                else:
                    self._repeat_stop(dispatched, now)
        for dispatched in self._stuck:
            self._repeat_stop(dispatched, now)
        self._pool.take_back_stalled(now)
        for limit in (*self._limits.values(), self._alone):
            if limit.waiting:
                self._admit(limit)

    def started_before(self, moment: float) -> list[ClaimedJob]:
        """Jobs that have begun (not only been dispatched) before a moment."""
        for dispatched in self._dispatched.values():
            self._note_start(dispatched)
        return [dispatched.job for dispatched in self._dispatched.values() if 0.0 < dispatched.started < moment]

    def started_at(self, job: ClaimedJob) -> float | None:
        """When a job has begun; ``None``: it waits, or is not here."""
        if (dispatched := self._dispatched.get(job)) is None:
            return None
        self._note_start(dispatched)
        return dispatched.started or None

    @staticmethod
    def _repeat_stop(dispatched: DispatchedJob, now: float) -> None:
        if now >= dispatched.stop_repeat_at and dispatched.task is not None:
            dispatched.stop_repeat_at = now + CANCEL_AGAIN_SECONDS  # the handler caught the last cancellation
            dispatched.task.cancel()

    def _detach(self, dispatched: DispatchedJob, cause: StopCause, now: float) -> None:
        """The handler catches every cancellation: the job gets its outcome, another job its place. The sweep cancels on."""
        dispatched.detached = True
        self._stuck.add(dispatched)
        if dispatched.attempt is not None:  # nothing of it may be committed any more, and the connection is needed
            rollback = self._loop.create_task(dispatched.attempt.rollback(), name="jobmaster-rollback")
            self._rollbacks.add(rollback)
            rollback.add_done_callback(self._rollbacks.discard)
        self._outcome_builder.stopped(dispatched.job, cause, dispatched.started, now)
        self._on_detached(dispatched.job, cause, now - dispatched.stop_requested_at)
        self._finish(dispatched)

    @property
    def stuck(self) -> int:
        """Number of detached handlers in tasks that have not ended."""
        return len(self._stuck)

    def is_waiting(self, job: ClaimedJob) -> bool:
        """True when a job was dispatched and has not begun. One that lies with the threads is taken back from them first: a
        thread must not begin it between this answer and what the caller then does."""
        if (dispatched := self._dispatched.get(job)) is None:
            return False
        self._withdraw(dispatched)
        return self.started_at(job) is None

    def _withdraw(self, dispatched: DispatchedJob) -> None:
        if dispatched.thread is not None and not dispatched.started and self._threads.withdraw(dispatched.thread):
            self._wait_for_thread(dispatched)

    def _wait_for_thread(self, dispatched: DispatchedJob) -> None:
        """It has left the threads and has not begun."""
        dispatched.thread = None
        self._wait_again(dispatched)
        self._leave_limit(dispatched, self._admit_soon)

    def _note_start(self, dispatched: DispatchedJob) -> None:
        """A thread takes a job when it comes to it, without a word to the loop."""
        if dispatched.thread is not None and not dispatched.started and dispatched.thread.started_at is not None:
            self._begin(dispatched, dispatched.thread.started_at)

    async def aclose(self, timeout_seconds: float, *, kill: bool = True) -> None:
        """End workers, cancel tasks, close the threads. Jobs that still run get no outcome.

        Args:
            kill: kill the workers; False: they leave their lifespans first.
        """
        self._transactional.closing = True
        if kill:
            self._pool.kill_all()
        tasks = [
            dispatched.task for dispatched in (*self._dispatched.values(), *self._stuck) if dispatched.task is not None
        ]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_CLOSE_SECONDS)
        await self._pool.close()
        await self._threads.close(timeout_seconds)

    # ------------------------------------------------------------ admission

    def _admit(self, limit: ConcurrencyLimit) -> None:
        limit.is_due = False
        if limit is self._in_processes:
            self._give_ahead(limit)
        while limit.waiting and limit.admitted < limit.size + self._ahead(limit):
            now = self._now()
            if (dispatched := self._next(limit, now)) is None:
                return  # the sweep tries again
            if limit is self._in_processes and self._may_be_given(dispatched.job) and not self._pool.grows:
                return  # a worker that has room will say so
            handler = dispatched.job.handler
            if limit.admitted >= limit.size and not self._may_lie(dispatched.job):
                return
            limit.waiting.remove(dispatched)
            limit.admitted += 1
            dispatched.admitted = True
            if limit is self._in_tasks:
                dispatched.on_loop = True
                self._spawn(dispatched, self._run_transactional(dispatched), "jobmaster-transactional")
            elif limit is not self._in_threads:
                self._spawn(dispatched, self._run_in_process(dispatched), "jobmaster-process")
            elif handler is not None and handler.is_surrounded:
                dispatched.on_loop = True
                self._note_on_way(dispatched)
                self._spawn(dispatched, self._run_around_thread(dispatched), "jobmaster-around-thread")
            elif needs_write(dispatched.job):
                self._note_on_way(dispatched)
                self._spawn(dispatched, self._authorise_thread(dispatched), "jobmaster-authorise")
            else:
                self._start_thread(dispatched)

    def _ahead(self, limit: ConcurrencyLimit) -> int:
        """Jobs that may lie with the threads: none while a task brings a job there, which has begun and would lie behind."""
        return _THREAD_JOBS_AHEAD if limit is self._in_threads and not limit.on_way else 0

    @staticmethod
    def _note_on_way(dispatched: DispatchedJob) -> None:
        dispatched.on_way = True
        dispatched.limit.on_way += 1

    @staticmethod
    def _may_lie(job: ClaimedJob) -> bool:
        """True when a job may lie with the threads: nothing but the call itself belongs to its start."""
        handler = job.handler
        return not (handler is None or handler.is_surrounded or needs_write(job) or has_limits(job))

    def _spawn(self, dispatched: DispatchedJob, work: Coroutine[object, object, None], name: str) -> None:
        def ended(task: asyncio.Task[None]) -> None:
            if task.cancelled() and dispatched.cause is not None and self._dispatched.get(dispatched.job) is dispatched:
                self._end_unstarted(dispatched)  # stopped before its first step: nothing of the coroutine has run
            self._stuck.discard(dispatched)
            if not task.cancelled() and (error := task.exception()) is not None:
                self._on_failure(error)

        # A fresh context: the caller may be another job that has just ended.
        context = set_running(self._context.copy(), dispatched)
        dispatched.task = task = self._loop.create_task(work, name=name, context=context)
        task.add_done_callback(ended)

    def _next(self, limit: ConcurrencyLimit, now: float) -> DispatchedJob | None:
        return next((each for each in limit.waiting if self.may_start(each.job, now)), None)

    def may_start(self, job: ClaimedJob, now: float) -> bool:
        """True when a waiting job may start: its bucket is not frozen, and the lease authorises it, or the store does and the
        job does not need the master."""
        owned = job.claimed_list.owned.present
        if owned.frozen:
            return False
        return self._ownership.may_start(now) or (not needs_master(job) and self._ownership.may_start_in(owned, now))

    def _admit_soon(self, limit: ConcurrencyLimit) -> None:
        if limit.waiting and not limit.is_due:
            limit.is_due = True
            self._loop.call_soon(self._admit, limit, context=self._context)

    def _finish(self, dispatched: DispatchedJob, then: Callable[[ConcurrencyLimit], None] | None = None) -> None:
        if self._dispatched.pop(dispatched.job, None) is None:
            return
        if self._spans is not None:
            self._spans.left(dispatched.job)
        if dispatched.admitted:
            # Threads deliver many results in one turn, and others lie with them: what follows is admitted together.
            soon = then is None and dispatched.limit is self._in_threads
            self._leave_limit(dispatched, self._admit_soon if soon else then or self._admit)
        dispatched.done(dispatched.job)

    def _leave_limit(self, dispatched: DispatchedJob, then: Callable[[ConcurrencyLimit], None]) -> None:
        dispatched.admitted = False
        dispatched.limit.admitted -= 1
        dispatched.limit.on_way -= dispatched.on_way
        dispatched.on_way = False
        then(dispatched.limit)

    # ------------------------------------------------------------ the start

    def _make_context(self, dispatched: DispatchedJob) -> JobContext:
        deadline = dispatched.deadline
        if not deadline:  # a thread has just begun it, and the loop has not noted that
            thread = dispatched.thread
            started = self._now() if thread is None or thread.started_at is None else thread.started_at
            deadline = started + self._outcome_builder.timeout_seconds(dispatched.job)
        return self._outcome_builder.context(dispatched.job, deadline)

    async def _begins(self, dispatched: DispatchedJob) -> bool:
        """``_may_begin``, but False instead of the cancellation that stopped the job."""
        try:
            return await self._may_begin(dispatched)
        except asyncio.CancelledError:
            if dispatched.cause is None:
                raise  # the process ends
            return False

    def _begin(self, dispatched: DispatchedJob, now: float) -> None:
        dispatched.started = now
        dispatched.deadline = now + self._outcome_builder.timeout_seconds(dispatched.job)
        dispatched.overdue_at = now + warn_after_seconds(dispatched.job)

    @staticmethod
    def _undo_begin(dispatched: DispatchedJob) -> None:
        """The job has not begun after all."""
        dispatched.started = dispatched.deadline = 0.0

    async def _may_begin(self, dispatched: DispatchedJob) -> bool:
        """True: it begins now. False: it was stopped, it is not ours (any more), or it waits again (``_end_unstarted``)."""
        answer: bool | None = True
        if needs_write(dispatched.job) and not dispatched.allowed:
            answer = await self._authorise(dispatched.job)
            dispatched.allowed = answer is True
        now = self._now()
        runs = dispatched.cause is None and dispatched.job.phase is JobPhase.RUNNING
        if answer and runs and self.may_start(dispatched.job, now):
            self._begin(dispatched, now)
            return True
        dispatched.deferred = runs and (answer is None or self._ownership.suspended)
        return False

    def _end_unstarted(self, dispatched: DispatchedJob, *, pause_seconds: float = 0.0) -> None:
        """The job has not begun, whatever the state of its row: it waits again, is given back or ends."""
        job, now = dispatched.job, self._now()
        if dispatched.deferred:  # the master does not answer: it waits and frees its place
            dispatched.deferred = dispatched.allowed = False
            dispatched.task = None
            dispatched.limit.waiting.append(dispatched)
            self._leave_limit(dispatched, self._admit)
            return
        if job.phase is JobPhase.RUNNING and dispatched.cause is None and self._permits.is_denied(job):
            job.phase = JobPhase.QUEUED  # the executor puts it aside
        elif job.phase is JobPhase.RUNNING:
            if job.unwritable:
                job.phase = JobPhase.ENDED  # it cannot have its row, so it cannot be started, or given back
            elif dispatched.cause is not None:
                self._stopped(dispatched, now)
            else:
                self._outcome_builder.release(job, after_seconds=pause_seconds, now=now)
        self._finish(dispatched)

    def _stopped(self, dispatched: DispatchedJob, now: float) -> None:
        """The outcome of a job that was stopped."""
        assert dispatched.cause is not None
        if not dispatched.started and dispatched.cause is StopCause.RELEASE:
            self._outcome_builder.release(dispatched.job)  # it has not begun, whatever its rule of delivery
        else:
            self._outcome_builder.stopped(dispatched.job, dispatched.cause, dispatched.started or now, now)

    # ------------------------------------------------------------ threads

    async def _authorise_thread(self, dispatched: DispatchedJob) -> None:
        begins = await self._begins(dispatched)
        dispatched.task = None
        if begins:
            self._start_thread(dispatched)
        else:
            self._end_unstarted(dispatched)

    def _start_thread(self, dispatched: DispatchedJob) -> None:
        job = dispatched.job
        handler = job.handler
        assert handler is not None
        try:
            arguments = handler.decode(handler.args_of(job.entry))
            function = handler.function
            if handler.wants_context:
                arguments = {"dispatched": dispatched, "function": function, "arguments": arguments}
                function = _with_context

            def ended(error: BaseException | None, result: object, ran_us: int) -> None:
                self._thread_ended(dispatched, error, result, ran_us)

            # A copy each, so that no context variable leaks from one job into the next.
            context = set_running(self._context.copy(), dispatched)
            until = self._ownership.may_start_until(job.claimed_list.owned.present)
            dispatched.thread = self._threads.submit(
                function, arguments, ended, context, inf if dispatched.started else until
            )
        except Unavailable:  # no thread can be started; the same error of a handler comes by ``ended``
            dispatched.started = 0.0
            self._loop.call_soon(self._not_started, dispatched)
        except Exception as error:  # arguments that do not fit
            self._loop.call_soon(self._thread_ended, dispatched, error, None, 0)

    def _not_started(self, dispatched: DispatchedJob) -> None:
        if dispatched.cause is None:
            self._outcome_builder.release(dispatched.job, after_seconds=NOT_STARTED_PAUSE_SECONDS, now=self._now())
            self._finish(dispatched)

    def _thread_ended(
        self, dispatched: DispatchedJob, error: BaseException | None, result: object, ran_us: int
    ) -> None:
        if dispatched.cause is not None:
            return
        self._note_start(dispatched)
        if isinstance(error, TooLate) and not dispatched.started:
            self._wait_for_thread(dispatched)
            return
        started = dispatched.started or self._now()
        ended = started + ran_us / 1e6
        try:
            if error is not None:
                self._outcome_builder.raised(dispatched.job, error, started, ended)
            else:
                self._outcome_builder.returned(dispatched.job, result, started, ended)
            self._finish(dispatched)
        except Exception as defect:  # as in a slot or a task: a job without outcome would hold up the exit
            self._on_failure(defect)

    async def _run_around_thread(self, dispatched: DispatchedJob) -> None:
        """Middleware and dependencies run in this task, and the function in a thread."""
        if not await self._begins(dispatched):
            self._end_unstarted(dispatched)
            return
        handler = dispatched.job.handler
        assert handler is not None
        error: BaseException | None = None
        result: object = None
        try:
            arguments = handler.decode(handler.args_of(dispatched.job.entry))
            in_thread = functools.partial(self._await_thread, dispatched)
            result = await handler.run_surrounded(dispatched.current_context(), arguments, in_thread)
        except BaseException as raised:
            if isinstance(raised, asyncio.CancelledError) and dispatched.cause is None and self._transactional.closing:
                raise  # the process ends: no outcome
            if not is_current_task(raised):
                raise  # the coroutine is closed from outside
            error = raised
        if dispatched.detached:
            return
        dispatched.is_ending = True
        if not dispatched.started:  # no thread could be started; it may have been stopped meanwhile
            self._end_unstarted(dispatched, pause_seconds=NOT_STARTED_PAUSE_SECONDS)
            return
        self._around_ended(dispatched, error, result)
        self._finish(dispatched)

    async def _await_thread(self, dispatched: DispatchedJob, arguments: dict[str, Any]) -> object:
        """Call the function of a handler in a thread, with the context variables of this task."""
        handler = dispatched.job.handler
        assert handler is not None
        ended: asyncio.Future[tuple[BaseException | None, object]] = self._loop.create_future()

        def deliver(error: BaseException | None, result: object, _: int) -> None:
            if not ended.done():
                ended.set_result((error, result))

        call = {"context": dispatched.current_context(), "arguments": arguments}
        try:
            thread = self._threads.submit(handler.invoke, call, deliver)
        except Unavailable:
            dispatched.started = 0.0
            raise
        try:
            error, result = await ended
        except asyncio.CancelledError:
            dispatched.current_context().cancelled = True
            self._threads.quarantine(thread)
            raise
        if error is not None:
            raise error
        return result

    def _around_ended(self, dispatched: DispatchedJob, error: BaseException | None, result: object) -> None:
        job, started, now, cause = dispatched.job, dispatched.started, self._now(), dispatched.cause
        if cause is not None and isinstance(error, asyncio.CancelledError):
            self._outcome_builder.stopped(job, cause, started, now)
        elif cause is StopCause.SUPERSEDED:
            return
        elif error is not None:
            self._outcome_builder.raised(job, error, started, now)
        else:
            self._outcome_builder.returned(job, result, started, now)

    # ------------------------------------------------------------ tasks

    async def _run_transactional(self, dispatched: DispatchedJob) -> None:
        if not await self._begins(dispatched):
            self._end_unstarted(dispatched)
            return
        await self._transactional.run(dispatched)
        if not dispatched.detached:
            self._finish(dispatched)

    # ------------------------------------------------------------ worker processes

    async def _run_in_process(self, dispatched: DispatchedJob) -> None:
        job = dispatched.job
        process_job: ProcessJob | None = None
        result: AttemptResult | None = None
        try:
            process_job = make_process_job(self._outcome_builder, job, self._now())
            begin = functools.partial(self._may_begin, dispatched)
            if self._spans is not None:
                begin = functools.partial(self._begin_traced, dispatched, process_job, self._spans)
            if dispatched.limit is self._alone:
                result = await self._pool.run_alone(process_job, begin)
            else:
                result = await self._pool.run(process_job, begin, functools.partial(self._undo_begin, dispatched))
        except asyncio.CancelledError:
            if dispatched.cause is None:
                raise  # the process ends
        except Exception as error:
            # No process could be started: not the job's fault. (An at-most-once job that may have begun is not given back.)
            now = self._now()
            if isinstance(error, OSError) and not (dispatched.started and is_at_most_once(job)):
                self._outcome_builder.release(job, after_seconds=NOT_STARTED_PAUSE_SECONDS, now=now)
            else:
                self._outcome_builder.raised(job, error, dispatched.started or now, now)
            self._finish(dispatched)
            return
        if not dispatched.started:
            self._end_unstarted(dispatched, pause_seconds=NOT_STARTED_PAUSE_SECONDS)
            return
        success = None if process_job is None else process_job.success
        if success is None or not await self._transactional.settlement.settle_process_result(
            job, success, result, dispatched.started
        ):
            record_result(self._outcome_builder, dispatched, result, self._now())
        self._finish(dispatched)

    async def _begin_traced(self, dispatched: DispatchedJob, process_job: ProcessJob, spans: RunSpans) -> bool:
        begins = await self._may_begin(dispatched)
        if begins:
            process_job.trace = spans.begin_elsewhere(dispatched.job)
        return begins

    # ------------------------------------------------------------ jobs ahead of a running one

    def _give_ahead(self, limit: ConcurrencyLimit) -> None:
        """Give waiting jobs to workers, several at a time; those that wait behind a job that cannot be given wait on."""
        while limit.waiting and (worker := self._pool.room()) is not None:
            given: list[GivenJob] = []
            share, now = self._pool.share_of(len(limit.waiting)), self._now()
            while len(given) < share and (dispatched := self._next(limit, now)) is not None:
                job = dispatched.job
                if not self._may_be_given(job) or not self._pool.fits(
                    worker, given, job.entry.handler, len(job.entry.args)
                ):
                    break
                limit.waiting.remove(dispatched)
                if (each := self._given(dispatched, now)) is not None:
                    given.append(each)
            if not given:
                return
            self._pool.give(worker, given)

    def _may_be_given(self, job: ClaimedJob) -> bool:
        """True when nothing needs to be written or begun at its very start, but its lease to be in force."""
        handler = job.handler
        return (
            self._spans is None
            and handler is not None
            and not handler.options.records_itself
            and not needs_write(job)
            and not has_limits(job)
        )

    def _given(self, dispatched: DispatchedJob, now: float) -> GivenJob | None:
        job = dispatched.job
        try:
            process_job = make_process_job(self._outcome_builder, job, now)
        except Exception as error:  # arguments that do not open
            self._loop.call_soon(self._not_given, dispatched, error)
            return None
        given = GivenJob(
            process_job,
            functools.partial(self._given_ended, dispatched),
            functools.partial(self._given_started, dispatched),
            self._ownership.may_start_until(job.claimed_list.owned.present) - now,
            self._pool.expected_seconds(process_job.handler),
        )
        self._given_jobs[dispatched] = given
        return given

    def _not_given(self, dispatched: DispatchedJob, error: Exception) -> None:
        if dispatched.cause is None:
            now = self._now()
            self._outcome_builder.raised(dispatched.job, error, now, now)
            self._finish(dispatched)

    def _given_started(self, dispatched: DispatchedJob, ago_seconds: float) -> None:
        dispatched.goes_back = False
        self._begin(dispatched, self._now() - ago_seconds)

    def _given_ended(self, dispatched: DispatchedJob, result: AttemptResult | None) -> None:
        """``result`` ``None``: it has not begun."""
        given = self._given_jobs.pop(dispatched, None)
        if self._transactional.closing and dispatched.cause is None:
            return  # the process ends: no outcome
        try:
            if given is not None and result is not None:
                self._pool.note_run(given.job.handler, result)
                record_result(self._outcome_builder, dispatched, result, self._now())
                self._finish(dispatched)
            elif dispatched.cause is not None or dispatched.goes_back or dispatched.job.phase is not JobPhase.RUNNING:
                self._end_unstarted(dispatched)
            elif given is not None and not given.taken_back:
                self._died_unstarted(dispatched)
            else:
                self._wait_again(dispatched)
        except Exception as defect:  # as in a slot or a task: a job without outcome would hold up the exit
            self._on_failure(defect)

    def _died_unstarted(self, dispatched: DispatchedJob) -> None:
        dispatched.deaths += 1
        if dispatched.deaths <= DEATHS_MAX:
            self._wait_again(dispatched)
            return
        self._begin(dispatched, self._now())
        record_result(self._outcome_builder, dispatched, DIED_BEFORE, self._now())
        self._finish(dispatched)

    def _wait_again(self, dispatched: DispatchedJob) -> None:
        """Behind those that came back with it, and before all others."""
        limit = dispatched.limit
        at = next((at for at, each in enumerate(limit.waiting) if not each.came_back), len(limit.waiting))
        dispatched.came_back = True
        limit.waiting.insert(at, dispatched)
        self._admit_soon(limit)


def _with_context(dispatched: DispatchedJob, function: Callable[..., object], arguments: dict[str, Any]) -> object:
    """In the thread: the deadline of the context counts from the start."""
    return function(dispatched.current_context(), **arguments)
