"""The job that runs here: the context of the running handler, also for code that was not given it.

A context variable names the run, so the tasks that a handler starts and its calls of ``asyncio.to_thread`` find it too. In a
slot of an agent's event loop the variable is set once per slot, because setting it for every job took 3 to 6 % of the time of
a job that does nothing: it names the slot, and the context is made when it is first read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import Context, ContextVar
from typing import Any, Protocol, TypedDict, TypeVar, Unpack

from jobmaster.handlers.context import JobContext

T = TypeVar("T")


class TaskOptions(TypedDict, total=False):
    """Options with which event loops call a task factory."""

    context: Context | None
    name: str | None
    eager_start: bool | None
    """From Python 3.14 on."""


class JobPlace(Protocol):
    """A place that runs one job after another: a slot."""

    def current_context(self) -> JobContext[Any] | None:
        """Context of the job that runs there; ``None`` between two jobs, and after the place was given up."""
        ...

    def note_task(self) -> None:
        """A task, or work of the loop's executor, was created there; it may go on after the job."""
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


def task_factory(
    loop: asyncio.AbstractEventLoop,
    work: Coroutine[Any, Any, T] | Generator[Any, None, T],
    /,
    **options: Unpack[TaskOptions],
) -> asyncio.Future[T]:
    """Task factory of an agent's event loop. It notes that a job has created a task: if that task outlives its job, it must
    not be taken for a part of the next job of the slot."""
    if options.get("context") is None:
        _note_task()
    return asyncio.Task(work, loop=loop, **options)  # type: ignore[misc]  # the last one is new


class LoopExecutor(ThreadPoolExecutor):
    """Default executor of an agent's event loop. It notes that a job has given it work, which may outlive the job like a
    task: ``asyncio.to_thread`` copies the context variables of the job."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        """See ``ThreadPoolExecutor.submit``."""
        _note_task()
        return super().submit(fn, *args, **kwargs)


def _note_task() -> None:
    running = _running.get()
    if running is not None and not isinstance(running, JobContext):
        running.note_task()


def set_running(context: Context, running: JobContext[Any] | JobPlace) -> Context:
    """Have ``current_job`` return this run in everything that runs in ``context``; returns it."""
    context.run(_running.set, running)
    return context


def set_here(running: JobPlace) -> None:
    """The same in the present context."""
    _running.set(running)
