"""Handlers that do not run on the loop: ``thread`` in threads, ``process`` (and every rescued job) in worker processes.

A rescued job runs alone in a process of its own whatever its handler says, so that only the culprit of a crash can reach
``max_rescues`` and its neighbours never do.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from dataclasses import dataclass

from jobmaster.clock import Clock
from jobmaster.handlers import JobContext
from jobmaster.model.errors import Unavailable
from jobmaster.model.job import ErrorInfo, RunMode
from jobmaster_agents.isolation import IsolatedPool
from jobmaster_agents.isolation_wire import IsolatedJob, IsolatedResult, ResultKind
from jobmaster_agents.portions import LiveJob
from jobmaster_agents.threads import ThreadJob, ThreadRunner
from jobmaster_agents.verdicts import StopCause, Verdicts

Done = Callable[[LiveJob], None]

_WORKER_GRACE_SECONDS = 5.0
"""The execution's own deadline sweep comes first; the pool's is a second line behind it."""


@dataclass(slots=True)
class _Away:
    job: LiveJob
    started: float
    done: Done
    context: JobContext | None = None
    thread: ThreadJob | None = None
    task: asyncio.Task[None] | None = None
    cause: StopCause | None = None


class ElsewhereRunner:
    """Threads and worker processes of one agent."""

    def __init__(self, threads: ThreadRunner, pool: IsolatedPool, verdicts: Verdicts, clock: Clock) -> None:
        self._loop = asyncio.get_running_loop()
        self._threads = threads
        self._pool = pool
        self._verdicts = verdicts
        self._now = clock.boottime
        self._away: dict[bytes, _Away] = {}

    def start(self, job: LiveJob, started: float, done: Done) -> None:
        """Run the job; its verdict is given before ``done`` is called on the loop."""
        away = self._away[job.entry.id] = _Away(job, started, done)
        handler = job.handler
        assert handler is not None
        if handler.options.mode is RunMode.THREAD and not job.entry.rescues:
            self._start_thread(away)
        else:
            away.task = self._loop.create_task(self._isolated(away), name="jobmaster-isolated")

    def stop(self, job: LiveJob, cause: StopCause) -> None:
        """A worker process is killed; a thread is given up (it cannot be killed, its late result is thrown away)."""
        away = self._away.get(job.entry.id)
        if away is None or away.cause is not None:
            return
        away.cause = cause
        if away.context is not None:
            away.context.cancelled = True
        if away.task is not None:
            away.task.cancel()
            return
        if away.thread is not None:
            self._threads.quarantine(away.thread)
        self._verdicts.stopped(job, cause, away.started, self._now())
        self._finish(away)

    async def aclose(self, timeout_seconds: float) -> None:
        """Kill workers, give up threads."""
        tasks = [away.task for away in self._away.values() if away.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._pool.close()
        await self._threads.close(timeout_seconds)

    def _finish(self, away: _Away) -> None:
        if self._away.pop(away.job.entry.id, None) is away:
            away.done(away.job)

    # ------------------------------------------------------------ threads

    def _start_thread(self, away: _Away) -> None:
        job = away.job
        handler = job.handler
        assert handler is not None
        try:
            arguments = handler.decode(job.entry.args)
            function = handler.function
            if handler.wants_context:
                deadline = away.started + self._verdicts.timeout_seconds(job)
                away.context = self._verdicts.context(job, deadline)
                function = functools.partial(function, away.context)

            def ended(error: BaseException | None, result: object, ran_us: int) -> None:
                self._thread_ended(away, error, result, ran_us)

            away.thread = self._threads.submit(function, arguments, ended)
        except Exception as error:  # arguments that do not fit; a pool that cannot start threads
            self._loop.call_soon(self._thread_ended, away, error, None, 0)

    def _thread_ended(self, away: _Away, error: BaseException | None, result: object, ran_us: int) -> None:
        if away.cause is not None:
            return
        ended = away.started + ran_us / 1e6
        if isinstance(error, Unavailable):
            self._verdicts.release(away.job)
        elif error is not None:
            self._verdicts.raised(away.job, error, away.started, ended)
        else:
            self._verdicts.returned(away.job, result, away.started, ended)
        self._finish(away)

    # ------------------------------------------------------------ worker processes

    async def _isolated(self, away: _Away) -> None:
        job = away.job
        entry, holding = job.entry, job.portion.holding
        headers = self._verdicts.headers(job)
        order = IsolatedJob(
            job_id=entry.id,
            handler=entry.handler,
            args=entry.args,
            token=entry.token,
            attempt=entry.attempt + 1,
            max_attempts=self._verdicts.max_attempts(job),
            rescues=entry.rescues,
            lane=holding.lane,
            priority=holding.priority,
            tags=headers.tags,
            metadata=headers.metadata,
            timeout_seconds=self._verdicts.timeout_seconds(job) + _WORKER_GRACE_SECONDS,
        )
        run = self._pool.run_alone if entry.rescues else self._pool.run
        try:
            result = await run(order)
        except asyncio.CancelledError:
            if away.cause is None:
                raise
            self._verdicts.stopped(job, away.cause, away.started, self._now())
        except Exception as error:  # no process could be started: not the job's fault
            self._verdicts.release(job) if isinstance(error, OSError) else self._verdicts.raised(
                job, error, away.started, self._now()
            )
        else:
            self._isolated_ended(away, result)
        self._finish(away)

    def _isolated_ended(self, away: _Away, result: IsolatedResult) -> None:
        job, started, ended = away.job, away.started, away.started + result.ran_us / 1e6
        kind = result.kind
        if away.cause is not None:
            self._verdicts.stopped(job, away.cause, started, self._now())
        elif kind is ResultKind.OK:
            self._verdicts.encoded(job, result.result, started, ended)
        elif kind is ResultKind.TIMEOUT:
            self._verdicts.stopped(job, StopCause.TIMEOUT, started, ended)
        elif kind is ResultKind.CANCELLED:
            self._verdicts.stopped(job, StopCause.RELEASE, started, ended)
        elif kind is ResultKind.NOT_STARTED:
            self._verdicts.release(job)
        else:
            info = result.error or ErrorInfo(type="Crashed", message="the worker process ended", reason="crashed")
            if kind is ResultKind.CANCEL:
                self._verdicts.cancelled(job, info.message, started, ended)
            elif info.reason == "arguments":
                self._verdicts.unfit(job, info, started, ended)
            else:
                self._verdicts.failed_elsewhere(job, info, started, ended, result.retry_after_seconds)
