"""Django's tasks as handlers: what runs in an agent around the function of a task.

A plain function runs in a thread of the agent, a coroutine function on its event loop. Connections of the project's databases
are closed around each job as Django closes them around each request: when they are broken or too old.
"""

from __future__ import annotations

import inspect
import os
import socket
import traceback
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from asgiref.sync import SyncToAsync, ThreadSensitiveContext
from django.db import close_old_connections, connections
from django.utils import timezone

from jobmaster.django.arguments import parameters_of
from jobmaster.django.interface import (
    Task,
    TaskContext,
    TaskError,
    TaskResult,
    TaskResultStatus,
    normalize_json,
    task_backends,
    task_finished,
    task_started,
)
from jobmaster.django.results import TaskNote, call_of, change, created_at, new_result, task_of
from jobmaster.handlers import Cancel, Fail, Handlers, JobContext, JobOptions, Snooze
from jobmaster.model.errors import ConfigError

if TYPE_CHECKING:
    from jobmaster.django.open_clusters import OpenCluster

F = TypeVar("F", bound=Callable[..., Any])
_OPTIONS = "__jobmaster_options__"
_OF_THE_TASK = ("name", "priority", "lane")
"""Options that the task has already."""


def job_options(**options: Unpack[JobOptions]) -> Callable[[F], F]:
    """Options of a task's jobs that ``@task`` has no word for: attempts, time-outs, back-off, delivery.

    ::

        @task
        @job_options(max_attempts=5, timeout=30)
        def send_receipt(order: int) -> None: ...

    Raises:
        ConfigError: ``name``, ``priority`` or ``lane``, which the task itself has. The other options are checked when the
            task is first enqueued, and when an agent starts.
    """
    for name in _OF_THE_TASK:
        if name in options:
            raise ConfigError(
                f"job_options has no option {name!r}",
                hint="a task has its own name, and @task(priority=..., queue_name=...)",
            )

    def note(function: F) -> F:
        setattr(function, _OPTIONS, options)
        return function

    return note


def declare(cluster: OpenCluster, task: Task, backend: str) -> None:
    """Make the task known to the producer of this process, so that its jobs are checked before they are handed in."""
    if task.module_path not in cluster.handlers:
        with cluster.lock:
            if task.module_path not in cluster.handlers:
                add_handler(cluster.handlers, task, backend)


def add_handler(handlers: Handlers, task: Task, backend: str) -> None:
    """Declare the task's function as a handler with the task's path as its name.

    Args:
        backend: alias of the backend that jobs of other programs belong to.

    Raises:
        ConfigError: an option of ``job_options`` cannot work.
    """
    is_async = inspect.iscoroutinefunction(task.func)
    function = _async_handler(task, backend) if is_async else _plain_handler(task, backend)
    _look_like(function, task)
    handlers.add(function, **{**getattr(task.func, _OPTIONS, {}), "name": task.module_path})


def _look_like(function: Any, task: Task) -> None:
    """Name, place and parameters of the task's function.

    Django gives a task plain JSON values, whatever its annotations are, so the parameters have none here.
    """
    for name in ("__module__", "__name__", "__qualname__", "__doc__"):
        setattr(function, name, getattr(task.func, name))
    kind = inspect.Parameter.KEYWORD_ONLY
    defaults: dict[Any, Any] = {inspect.Parameter.VAR_POSITIONAL: [], inspect.Parameter.VAR_KEYWORD: {}}
    own = inspect.Parameter("job", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=JobContext)
    if any(one.name == "job" for one in parameters_of(task.func, task.takes_context)):
        own = own.replace(name="job_context")
    parameters = [
        inspect.Parameter(one.name, kind, default=defaults.get(one.kind, one.default))
        for one in parameters_of(task.func, task.takes_context)
    ]
    function.__signature__ = inspect.Signature([own, *parameters])
    function.__annotations__ = {own.name: JobContext}


def _plain_handler(task: Task, backend: str) -> Callable[..., Any]:
    def run(job: JobContext, /, **arguments: Any) -> Any:
        with _own_connections(), TaskRun(task, backend, job, arguments).reported() as attempt:
            return attempt.returned(task.func(*attempt.args, **attempt.kwargs))

    return run


def _async_handler(task: Task, backend: str) -> Callable[..., Any]:
    async def run(job: JobContext, /, **arguments: Any) -> Any:
        async with _own_thread():
            with TaskRun(task, backend, job, arguments).reported() as attempt:
                return attempt.returned(await task.func(*attempt.args, **attempt.kwargs))

    return run


# ---------------------------------------------------------------- connections


@contextmanager
def _own_connections() -> Iterator[None]:
    close_old_connections()
    try:
        yield
    finally:
        close_old_connections()


@asynccontextmanager
async def _own_thread() -> AsyncIterator[None]:
    """A thread of its own for what the coroutine calls synchronously (the ORM), as each request has under ASGI.

    It is left without waiting: after a time-out a query may still run in it, and the event loop must turn.
    """
    context = ThreadSensitiveContext()
    async with context:
        try:
            yield
        finally:
            executor = SyncToAsync.context_to_thread_executor.pop(context, None)
            if executor is not None:
                executor.submit(connections.close_all)
                executor.shutdown(wait=False)


# ---------------------------------------------------------------- one attempt


class TaskRun:
    """One attempt of a task, its result so far, and the signals about it."""

    def __init__(self, task: Task, backend: str, job: JobContext, arguments: Mapping[str, Any]) -> None:
        self._job = job
        note = TaskNote.read(job.metadata, backend)
        # The task with the priority and queue of this job; the function is that of the declared one.
        self.result: TaskResult = new_result(
            task_of(job.handler, note, job.lane), job.job_id_bytes, *call_of(task, arguments, note)
        )
        self.kwargs: dict[str, Any] = self.result.kwargs
        self.args: list[Any] = list(self.result.args)
        if task.takes_context:
            self.args.insert(0, TaskContext(task_result=self.result))
        self._sender = type(task_backends[self.result.backend])

    @contextmanager
    def reported(self) -> Iterator[TaskRun]:
        """Send ``task_started``, and ``task_finished`` when this attempt is the last one."""
        now = timezone.now()
        begun = {
            "status": TaskResultStatus.RUNNING,
            "enqueued_at": created_at(self._job.job_id_bytes),
            "started_at": now,
            "last_attempted_at": now,
            "worker_ids": [this_worker()] * self._job.attempt,
        }
        change(self.result, begun)
        task_started.send(self._sender, task_result=self.result)
        try:
            yield self
        except Snooze:
            raise  # the attempt does not count
        except (Exception, SystemExit) as error:
            self._failed(error)
            raise
        self._finished(TaskResultStatus.SUCCESSFUL)

    def returned(self, value: Any) -> Any:
        """The return value as JSON values; ``TypeError`` when it is not of JSON's types."""
        change(self.result, {"_return_value": normalize_json(value)})
        return self.result._return_value

    def _failed(self, error: BaseException) -> None:
        kind = type(error)
        text = "".join(traceback.format_exception(error))
        self.result.errors.append(
            TaskError(exception_class_path=f"{kind.__module__}.{kind.__qualname__}", traceback=text)
        )
        if isinstance(error, Cancel | Fail) or self._job.last_attempt:
            self._finished(TaskResultStatus.FAILED)

    def _finished(self, status: TaskResultStatus) -> None:
        change(self.result, {"status": status, "finished_at": timezone.now()})
        # A receiver that fails must not make a job that is done run again; Django logs its error.
        task_finished.send_robust(self._sender, task_result=self.result)


def this_worker() -> str:
    """Host and process that run the attempt."""
    return f"{socket.gethostname()}:{os.getpid()}"
