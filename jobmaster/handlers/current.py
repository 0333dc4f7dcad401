"""The job that runs here: the context of the running handler, also for code that was not given it.

A context variable names the run, so the tasks that a handler starts and its calls of ``asyncio.to_thread`` find it too. In a
slot of an agent's event loop the variable is set once per slot, because setting it for every job took 3 to 6 % of the time of
a job that does nothing: it names the slot, and the context is made when it is first read.
"""

from __future__ import annotations

from contextvars import Context, ContextVar
from typing import Any, Protocol

from jobmaster.handlers.context import JobContext


class JobPlace(Protocol):
    """A place that runs one job after another: a slot."""

    def current_context(self) -> JobContext[Any] | None:
        """Context of the job that runs there; ``None`` between two jobs."""
        ...


_running: ContextVar[JobContext[Any] | JobPlace | None] = ContextVar("jobmaster_running", default=None)


def current_job() -> JobContext[Any] | None:
    """The context of the job whose handler runs here; ``None`` outside of any handler.

    Works in every function that a handler calls, in its tasks, and in ``asyncio.to_thread``; in handlers of each mode, in
    middleware and in dependencies.
    """
    running = _running.get()
    if running is None or isinstance(running, JobContext):
        return running
    return running.current_context()


def set_running(context: Context, running: JobContext[Any] | JobPlace) -> Context:
    """Have ``current_job`` return this run in everything that runs in ``context``; returns it."""
    context.run(_running.set, running)
    return context
