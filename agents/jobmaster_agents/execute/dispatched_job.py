"""A job that does not run in a slot, from its dispatch to its end. `Dispatcher` and `TransactionalRunner` share it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from jobmaster.handlers import JobContext
from jobmaster_agents.execute.thread_pool import ThreadJob
from jobmaster_agents.outcomes.outcome_builder import StopCause
from jobmaster_agents.state.job_table import ClaimedJob

Done = Callable[[ClaimedJob], None]


class OpenAttempt(Protocol):
    """What a transactional handler has been given, as far as a stop needs it."""

    async def rollback(self) -> None: ...


class ConcurrencyLimit:
    """How many jobs of one kind run at once, and which jobs wait."""

    __slots__ = ("admitted", "is_due", "on_way", "size", "waiting")

    def __init__(self, size: int) -> None:
        self.size = size
        self.admitted = 0
        self.on_way = 0
        """Those of them that a task brings to their thread."""
        self.waiting: deque[DispatchedJob] = deque()
        self.is_due = False
        """The next turn of the loop admits jobs."""


@dataclass(slots=True, eq=False)
class DispatchedJob:
    """State of one dispatched job. Times are CLOCK_BOOTTIME seconds."""

    job: ClaimedJob
    done: Done
    limit: ConcurrencyLimit
    make_context: Callable[[DispatchedJob], JobContext]
    admitted: bool = False
    """It counts against its limit."""
    on_way: bool = False
    """A task brings it to its thread."""
    allowed: bool = False
    """The PROCESSING write that its start needs was accepted."""
    deferred: bool = False
    """It waits again, because the master does not answer."""
    started: float = 0.0
    """When it began; 0 while it waits, also for that write or for its worker process."""
    deadline: float = 0.0
    overdue_at: float = 0.0
    """When its handler's ``warn_after`` is over; infinite without it, or after the warning."""
    context: JobContext | None = None
    thread: ThreadJob | None = None
    task: asyncio.Task[None] | None = None
    deaths: int = 0
    """Worker processes that ended with it before it began."""
    came_back: bool = False
    """It has lain with a worker process or with the threads before, and waits first."""
    goes_back: bool = False
    """It is given back to the master, unless its worker process has begun it meanwhile."""
    cause: StopCause | None = None
    stop_requested_at: float = 0.0
    """When a handler on the loop was first cancelled; 0: it was not, or it is killed instead."""
    stop_repeat_at: float = 0.0
    """When it is cancelled again."""
    attempt: OpenAttempt | None = None
    is_ending: bool = False
    """The handler has ended; what is left to do is the agent's."""
    detached: bool = False
    """The handler does not stop, and the job has its outcome."""
    on_loop: bool = False
    """Its task runs code of the user: it is stopped by a cancellation."""

    def note_task(self) -> None:
        """A task was created by the job: its context names no other job, so nothing is to be noted."""

    def current_context(self) -> JobContext:
        """Its context, made when it is first needed (see ``current_job``)."""
        context = self.context
        if context is None:
            context = self.context = self.make_context(self)
            # Only ever set: the handler's thread makes the context, and a stop on the loop may have set it meanwhile.
            if self.cause is not None:
                context.cancelled = True
        return context
