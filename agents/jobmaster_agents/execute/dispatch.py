"""Handlers that do not run in a slot: ``thread`` in threads, ``process`` (and jobs rescued too often) in worker processes,
``transactional`` ones in tasks of their own, no more at once than there are connections for them.

A job that one more rescue would end runs alone in a process of its own whatever its handler says. A job waits here, not
started, until its kind has room (and a worker process is there for it): its time-out begins when it begins, and a start that
had to wait is authorised by the lease (or the store's word) of that moment.

A job whose start needs an accepted PROCESSING write (``start="fenced"``, ``delivery="at_most_once"``, rescued before) asks
for it at that moment and not earlier: a crash finds in the master as begun what began, and not what waited. So only the
culprit of a crash can reach ``max_rescues``, and a job delivered at most once is abandoned only if it may have begun.
"""

from __future__ import annotations

import asyncio
import functools
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from dataclasses import dataclass

from jobmaster.clock import Clock
from jobmaster.handlers import JobContext
from jobmaster.model.errors import Unavailable
from jobmaster.model.job import ErrorInfo, RunMode
from jobmaster_agents.execute.attempt_result import AttemptResult, ResultKind
from jobmaster_agents.execute.process_pool.pool import ProcessPool
from jobmaster_agents.execute.process_pool.protocol import ProcessJob
from jobmaster_agents.execute.run_queue import CANCEL_AGAIN_SECONDS, OnDetached, should_detach
from jobmaster_agents.execute.thread_pool import ThreadJob, ThreadPool
from jobmaster_agents.execute.transactional.attempt import AttemptTransaction
from jobmaster_agents.execute.transactional.confirmation import Confirmation
from jobmaster_agents.execute.transactional.runner import TransactionalRunner
from jobmaster_agents.outcomes.outcome import OutcomeBuilder, StopCause, is_at_most_once, needs_master, needs_write
from jobmaster_agents.state.job_table import ClaimedJob, JobPhase
from jobmaster_agents.state.ownership import Ownership

Done = Callable[[ClaimedJob], None]

_WORKER_GRACE_SECONDS = 5.0
"""The sweep here comes first; the pool's own deadline is a second line behind it."""
_NOT_STARTED_PAUSE_SECONDS = 5.0
_CLOSE_SECONDS = 10.0
"""For workers to be killed and transactions to be rolled back when the process ends."""


class _Room:
    """How many jobs of one kind run at once, and who waits."""

    __slots__ = ("inside", "size", "waiting")

    def __init__(self, size: int) -> None:
        self.size = size
        self.inside = 0
        self.waiting: deque[_Away] = deque()


@dataclass(slots=True, eq=False)
class _Away:
    job: ClaimedJob
    done: Done
    room: _Room
    inside: bool = False
    """The room has let it in."""
    allowed: bool = False
    """The write that stands before its start was accepted."""
    put_off: bool = False
    """It is to wait again, because the master does not answer."""
    started: float = 0.0
    """When it began; 0 while it waits, also for that write or for its worker process."""
    deadline: float = 0.0
    context: JobContext | None = None
    thread: ThreadJob | None = None
    task: asyncio.Task[None] | None = None
    cause: StopCause | None = None
    stop_requested_at: float = 0.0
    """When a handler on the loop was first asked to stop; 0: it was not asked, or is killed instead."""
    nag_at: float = 0.0
    """When it is asked again."""
    attempt: AttemptTransaction | Confirmation | None = None
    is_ending: bool = False
    detached: bool = False


class Dispatcher:
    """Threads and worker processes of one agent.

    Args:
        authorise: awaits an accepted PROCESSING write; False: do not run, None: not now.
        thread_jobs, process_jobs, attended_jobs: how many run at once; as many that run alone as ``process_jobs`` besides.
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
        on_detached: OnDetached,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._threads = threads
        self._pool = pool
        self._outcome_builder = outcome_builder
        self._ownership = ownership
        self._now = clock.boottime
        self._in_threads = _Room(thread_jobs)
        self._in_processes = _Room(process_jobs)
        self._alone = _Room(process_jobs)
        self._authorise = authorise
        self._in_tasks = _Room(transactional_jobs)
        self._transactional = transactional
        self._rooms = {
            RunMode.THREAD: self._in_threads,
            RunMode.PROCESS: self._in_processes,
            RunMode.ASYNC: self._in_tasks,
        }
        self._away: dict[ClaimedJob, _Away] = {}
        self._stuck: set[_Away] = set()
        self._rollbacks: set[asyncio.Task[None]] = set()
        self._on_detached = on_detached
        self.on_failure: Callable[[BaseException], None] = lambda error: None
        """Told of what the task of a job died of: no error of a handler, but an invariant of ours that is broken."""
        self._context = copy_context()
        """What every job finds: the context variables as the agent has them."""

    # ------------------------------------------------------------ the execution's side

    def start(self, job: ClaimedJob, done: Done) -> None:
        """Run the job when there is room; its verdict is given before ``done`` is called on the loop."""
        handler = job.handler
        assert handler is not None
        room = self._alone if self._outcome_builder.runs_alone(job) else self._rooms[handler.options.mode]
        away = self._away[job] = _Away(job, done, room)
        room.waiting.append(away)
        self._admit(room)

    def stop(self, job: ClaimedJob, cause: StopCause) -> None:
        """A worker process is killed; a thread is given up (it cannot be killed, its late result is thrown away)."""
        away = self._away.get(job)
        if away is None or away.cause is not None:
            return
        if away.thread is not None and not self._threads.quarantine(away.thread):
            return  # it has just ended, and how it did counts
        away.cause = cause
        if away.context is not None:
            away.context.cancelled = True
        now = self._now()
        if away.task is not None:
            if away.room is self._in_tasks:
                away.stop_requested_at, away.nag_at = now, now + CANCEL_AGAIN_SECONDS
            away.task.cancel()
            return
        if not away.inside:
            away.room.waiting.remove(away)
        self._stopped(away, now)
        # Who is stopped together with this one must not be let in first.
        self._finish(away, then=self._admit_soon)

    def sweep(self, now: float) -> None:
        """Stop what has run too long; let in what waited for the lease."""
        for away in list(self._away.values()):
            if away.started and away.cause is None and now >= away.deadline:
                self.stop(away.job, StopCause.TIMEOUT)
            elif away.stop_requested_at and not away.is_ending and away.cause is not None:
                if should_detach(away.cause, now - away.stop_requested_at):
                    self._detach(away, away.cause, now)
                else:
                    self._ask_again(away, now)
        for away in self._stuck:
            self._ask_again(away, now)
        for room in (*self._rooms.values(), self._alone):
            if room.waiting:
                self._admit(room)

    def started_before(self, moment: float) -> list[ClaimedJob]:
        """Jobs that have really been started before a moment."""
        return [away.job for away in self._away.values() if 0.0 < away.started < moment]

    @staticmethod
    def _ask_again(away: _Away, now: float) -> None:
        if now >= away.nag_at and away.task is not None:
            away.nag_at = now + CANCEL_AGAIN_SECONDS  # it swallowed the cancellation and can only be asked again
            away.task.cancel()

    def _detach(self, away: _Away, cause: StopCause, now: float) -> None:
        """Its handler swallows every cancellation: the job gets its verdict, another one the place. It is asked on."""
        away.detached = True
        self._stuck.add(away)
        if away.attempt is not None:  # nothing of it is committed any more, and the connection is wanted
            rollback = self._loop.create_task(away.attempt.rollback(), name="jobmaster-rollback")
            self._rollbacks.add(rollback)
            rollback.add_done_callback(self._rollbacks.discard)
        self._outcome_builder.stopped(away.job, cause, away.started, now)
        self._on_detached(away.job, cause, now - away.stop_requested_at)
        self._finish(away)

    @property
    def stuck(self) -> int:
        """Handlers in tasks that were given up and have not ended."""
        return len(self._stuck)

    def waits(self, job: ClaimedJob) -> bool:
        """True of a job that was passed on to here and has not begun."""
        away = self._away.get(job)
        return away is not None and not away.started

    async def aclose(self, timeout_seconds: float) -> None:
        """Kill workers, give up threads; nobody gets a verdict any more."""
        self._transactional.is_over = True
        self._pool.kill_all()
        tasks = [away.task for away in (*self._away.values(), *self._stuck) if away.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_CLOSE_SECONDS)
        await self._pool.close()
        await self._threads.close(timeout_seconds)

    # ------------------------------------------------------------ in and out

    def _admit(self, room: _Room) -> None:
        while room.waiting and room.inside < room.size:
            now = self._now()
            if (away := self._next(room, now)) is None:
                return  # the sweep asks again
            room.waiting.remove(away)
            room.inside += 1
            away.inside = True
            if room is self._in_tasks:
                self._spawn(away, self._run_transactional(away), "jobmaster-attended")
            elif room is not self._in_threads:
                self._spawn(away, self._run_in_process(away), "jobmaster-isolated")
            elif needs_write(away.job):
                self._spawn(away, self._authorise_thread(away), "jobmaster-authorise")
            else:
                self._begin(away, now)
                self._start_thread(away)

    def _spawn(self, away: _Away, work: Coroutine[object, object, None], name: str) -> None:
        def ended(task: asyncio.Task[None]) -> None:
            if task.cancelled() and away.cause is not None and self._away.get(away.job) is away:
                self._turn_away(away)  # stopped before its first step: nothing of the coroutine has run
            self._stuck.discard(away)
            if not task.cancelled() and (error := task.exception()) is not None:
                self.on_failure(error)

        # A fresh context: whoever lets a job in may be another one that has just ended.
        away.task = task = self._loop.create_task(work, name=name, context=self._context.copy())
        task.add_done_callback(ended)

    def _next(self, room: _Room, now: float) -> _Away | None:
        return next((each for each in room.waiting if self.may_start(each.job, now)), None)

    def may_start(self, job: ClaimedJob, now: float) -> bool:
        """True when a job that waits here may start: its bucket is not stopped, and the lease authorises it, or the store
        for what does not need the master."""
        owned = job.claimed_list.owned.present
        if owned.frozen:
            return False
        return self._ownership.may_start(now) or (not needs_master(job) and self._ownership.may_start_in(owned, now))

    def _admit_soon(self, room: _Room) -> None:
        if room.waiting:
            self._loop.call_soon(self._admit, room)

    def _finish(self, away: _Away, then: Callable[[_Room], None] | None = None) -> None:
        if self._away.pop(away.job, None) is None:
            return
        if away.inside:
            self._leave_room(away, then or self._admit)
        away.done(away.job)

    def _leave_room(self, away: _Away, then: Callable[[_Room], None]) -> None:
        away.inside = False
        away.room.inside -= 1
        then(away.room)

    # ------------------------------------------------------------ the start

    async def _begins(self, away: _Away) -> bool:
        """``_may_begin`` in a task that ends with the answer no, and not with the cancellation that stopped the job."""
        try:
            return await self._may_begin(away)
        except asyncio.CancelledError:
            if away.cause is None:
                raise  # the process ends
            return False

    def _begin(self, away: _Away, now: float) -> None:
        away.started = now
        away.deadline = now + self._outcome_builder.timeout_seconds(away.job)

    @staticmethod
    def _take_back(away: _Away) -> None:
        """Nothing of it has begun after all."""
        away.started = away.deadline = 0.0

    async def _may_begin(self, away: _Away) -> bool:
        """True: it begins now. False: it was stopped, it is not ours (any more), or it waits again (``_turn_away``)."""
        answer: bool | None = True
        if needs_write(away.job) and not away.allowed:
            answer = await self._authorise(away.job)
            away.allowed = answer is True
        now = self._now()
        runs = away.cause is None and away.job.phase is JobPhase.RUNNING
        if answer and runs and self.may_start(away.job, now):
            self._begin(away, now)
            return True
        away.put_off = runs and (answer is None or self._ownership.suspended)
        return False

    def _turn_away(self, away: _Away, *, pause_seconds: float = 0.0) -> None:
        """It has not begun, whatever its row says by now."""
        job, now = away.job, self._now()
        if away.put_off:  # the master does not answer: it waits, and keeps no place from what can do without
            away.put_off = away.allowed = False
            away.task = None
            away.room.waiting.append(away)
            self._leave_room(away, self._admit)
            return
        if job.phase is JobPhase.RUNNING:
            if job.unwritable:
                job.phase = JobPhase.ENDED  # it cannot have its row, so it cannot be started, or given back
            elif away.cause is not None:
                self._stopped(away, now)
            else:
                self._outcome_builder.release(job, after_seconds=pause_seconds, now=now)
        self._finish(away)

    def _stopped(self, away: _Away, now: float) -> None:
        """The verdict on a job that was stopped."""
        assert away.cause is not None
        if not away.started and away.cause is StopCause.RELEASE:
            self._outcome_builder.release(away.job)  # nothing of it has begun, whatever its rule of delivery
        else:
            self._outcome_builder.stopped(away.job, away.cause, away.started or now, now)

    # ------------------------------------------------------------ threads

    async def _authorise_thread(self, away: _Away) -> None:
        begins = await self._begins(away)
        away.task = None
        if begins:
            self._start_thread(away)
        else:
            self._turn_away(away)

    def _start_thread(self, away: _Away) -> None:
        job = away.job
        handler = job.handler
        assert handler is not None
        try:
            arguments = handler.decode(job.entry.args)
            function = handler.function
            if handler.wants_context:
                away.context = self._outcome_builder.context(job, away.deadline)
                function = functools.partial(function, away.context)

            def ended(error: BaseException | None, result: object, ran_us: int) -> None:
                self._thread_ended(away, error, result, ran_us)

            away.thread = self._threads.submit(function, arguments, ended)
        except Unavailable:  # no thread can be started; a handler's own error of this kind comes by ``ended``
            away.started = 0.0
            self._loop.call_soon(self._not_started, away)
        except Exception as error:  # arguments that do not fit
            self._loop.call_soon(self._thread_ended, away, error, None, 0)

    def _not_started(self, away: _Away) -> None:
        if away.cause is None:
            self._outcome_builder.release(away.job, after_seconds=_NOT_STARTED_PAUSE_SECONDS, now=self._now())
            self._finish(away)

    def _thread_ended(self, away: _Away, error: BaseException | None, result: object, ran_us: int) -> None:
        if away.cause is not None:
            return
        started = away.started
        ended = started + ran_us / 1e6
        if error is not None:
            self._outcome_builder.raised(away.job, error, started, ended)
        else:
            self._outcome_builder.returned(away.job, result, started, ended)
        self._finish(away)

    # ------------------------------------------------------------ tasks

    async def _run_transactional(self, away: _Away) -> None:
        if not await self._begins(away):
            self._turn_away(away)
            return
        await self._transactional.run(away)
        if not away.detached:
            self._finish(away)

    # ------------------------------------------------------------ worker processes

    async def _run_in_process(self, away: _Away) -> None:
        job = away.job
        begin = functools.partial(self._may_begin, away)
        order: ProcessJob | None = None
        result: AttemptResult | None = None
        try:
            order = self._order(away)
            if away.room is self._alone:
                result = await self._pool.run_alone(order, begin)
            else:
                result = await self._pool.run(order, begin, functools.partial(self._take_back, away))
        except asyncio.CancelledError:
            if away.cause is None:
                raise  # the process ends
        except Exception as error:
            # No process could be started: not the job's fault. (What may have begun is not given back to begin again.)
            now = self._now()
            if isinstance(error, OSError) and not (away.started and is_at_most_once(job)):
                self._outcome_builder.release(job, after_seconds=_NOT_STARTED_PAUSE_SECONDS, now=now)
            else:
                self._outcome_builder.raised(job, error, away.started or now, now)
            self._finish(away)
            return
        if not away.started:
            self._turn_away(away, pause_seconds=_NOT_STARTED_PAUSE_SECONDS)
            return
        success = None if order is None else order.success
        if success is None or not await self._transactional.settled(job, success, result, away.started):
            self._process_ended(away, result)
        self._finish(away)

    def _order(self, away: _Away) -> ProcessJob:
        job = away.job
        handler = job.handler
        assert handler is not None
        success = None
        if handler.options.records_itself:
            success = self._outcome_builder.success_row(job, self._now())
            job.has_row = True
        entry, owned = job.entry, job.claimed_list.owned
        headers = self._outcome_builder.headers(job)
        return ProcessJob(
            job_id=entry.id,
            handler=entry.handler,
            args=entry.args,
            token=entry.token,
            attempt=entry.attempt + 1,
            max_attempts=self._outcome_builder.max_attempts(job),
            rescues=entry.rescues,
            lane=owned.lane,
            priority=owned.priority,
            tags=headers.tags,
            metadata=headers.metadata,
            timeout_seconds=self._outcome_builder.timeout_seconds(job) + _WORKER_GRACE_SECONDS,
            success=success,
        )

    def _process_ended(self, away: _Away, result: AttemptResult | None) -> None:
        now = self._now()
        if away.cause is not None or result is None:
            started = away.started if result is None else now - result.ran_us / 1e6
            self._outcome_builder.stopped(away.job, away.cause or StopCause.RELEASE, started, now)
            return
        job, started = away.job, now - result.ran_us / 1e6
        kind = result.kind
        if kind is ResultKind.OK:
            self._outcome_builder.encoded(job, result.result, started, now)
        elif kind is ResultKind.TIMEOUT:
            self._outcome_builder.stopped(job, StopCause.TIMEOUT, started, now)
        elif kind is ResultKind.CANCELLED:
            self._outcome_builder.stopped(job, StopCause.RELEASE, started, now)
        elif kind is ResultKind.NOT_STARTED:
            self._outcome_builder.release(job, after_seconds=_NOT_STARTED_PAUSE_SECONDS, now=now)
        else:
            info = result.error or ErrorInfo(type="Crashed", message="the worker process ended", reason="crashed")
            if kind is ResultKind.CANCEL:
                self._outcome_builder.cancelled(job, info.message, started, now)
            elif info.reason == "arguments":
                self._outcome_builder.arguments_rejected(job, info, started, now)
            else:
                self._outcome_builder.attempt_failed(job, info, started, now, result.retry_after_seconds)
