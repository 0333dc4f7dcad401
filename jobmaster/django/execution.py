"""Django's tasks as handlers: what runs in an agent around the function of a task.

A plain function runs in a thread of the agent, a coroutine function on its event loop. Connections of the project's databases
are closed around each job as Django closes them around each request: when they are broken or too old.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import socket
import threading
import traceback
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

import msgspec
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
from jobmaster.django.results import TaskNote, call_of, change, created_at, level_of, new_result, task_of
from jobmaster.handlers import Handlers, JobContext, JobOptions, Retry, Snooze, check_lane
from jobmaster.handlers.decisions import decision_in
from jobmaster.handlers.retry_rules import RetryPolicy, RetryRules, checked_rules
from jobmaster.model.errors import ConfigError, InputError, InvalidArguments

if TYPE_CHECKING:
    from jobmaster.django.open_clusters import OpenCluster

F = TypeVar("F", bound=Callable[..., Any])
_OPTIONS = "__jobmaster_options__"
_OF_THE_TASK = ("name", "priority", "lane")
"""Options that the task has already."""
_ANSWERS_MAX = 1024
"""Answers of one policy that are kept for the second call: more than attempts that end at once."""


def job_options(**options: Unpack[JobOptions]) -> Callable[[F], F]:
    """Options of a task's jobs that ``@task`` does not have: attempts, time-outs, back-off, rules for errors, delivery.

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


def _rules_of(task: Task) -> RetryRules | None:
    """The rules of the task's options; those that cannot work are refused by ``Handlers.add``."""
    given = getattr(task.func, _OPTIONS, {})
    try:
        rules = checked_rules(given.get("retry_on"), given.get("give_up_on"), given.get("retry"))
    except ValueError:
        return None
    if rules is None or rules.policy is None:
        return rules
    return msgspec.structs.replace(rules, policy=_CalledOnce(rules.policy))


class _CalledOnce:
    """A retry policy that is called once for an attempt, and answers twice: the task and the agent both need to know whether
    the attempt is the last one. The agent comes second after an error, and first at a time-out.

    An answer is kept until the second call. A second call may never come (the job was cancelled), so the number is bounded.
    """

    def __init__(self, policy: RetryPolicy) -> None:
        self._policy = policy
        self._answers: dict[tuple[bytes, int], tuple[Any, BaseException | None]] = {}
        self._lock = threading.Lock()

    def __call__(self, ctx: JobContext, error: Exception) -> Any:
        attempt = (ctx.job_id_bytes, ctx.token)
        with self._lock:
            known = self._answers.pop(attempt, None)
        if known is not None:
            answer, raised = known
            if raised is not None:
                raise raised
            return answer
        try:
            answer = self._policy(ctx, error)
        except BaseException as raised:
            self._keep(attempt, None, raised)
            raise
        self._keep(attempt, answer, None)
        return answer

    def _keep(self, attempt: tuple[bytes, int], answer: Any, raised: BaseException | None) -> None:
        with self._lock:
            self._answers[attempt] = answer, raised
            if len(self._answers) > _ANSWERS_MAX:
                del self._answers[next(iter(self._answers))]


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
    options: dict[str, Any] = {
        **getattr(task.func, _OPTIONS, {}),
        "name": task.module_path,
        "priority": level_of(task.priority).label,
    }
    if _is_lane(task.queue_name):
        options["lane"] = task.queue_name
    wrap = _async_handler if inspect.iscoroutinefunction(task.func) else _plain_handler
    rules = _rules_of(task)
    if rules is not None and rules.policy is not None:
        options["retry"] = rules.policy
    function = wrap(task, backend, rules)
    _look_like(function, task)
    handlers.add(function, **options)


def _is_lane(queue: str) -> bool:
    """A task of another backend may have a queue that is none."""
    try:
        check_lane(queue)
    except InputError:
        return False
    return True


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


def _plain_handler(task: Task, backend: str, rules: RetryRules | None) -> Callable[..., Any]:
    def run(job: JobContext, /, **arguments: Any) -> Any:
        with _own_connections():
            attempt = TaskRun(task, backend, job, arguments, rules)
            try:
                task_started.send(attempt.sender, task_result=attempt.result)
                value = attempt.returned(task.func(*attempt.args, **attempt.kwargs))
                ended = attempt.given_up() if job.cancelled else attempt.succeeded()
            except (Exception, SystemExit) as error:
                if attempt.given_up() if job.cancelled else attempt.failed(error):
                    task_finished.send_robust(attempt.sender, task_result=attempt.result)
                raise
            if ended:
                # A receiver that fails must not make a job that is done run again; Django logs its error.
                task_finished.send_robust(attempt.sender, task_result=attempt.result)
            return value

    return run


def _async_handler(task: Task, backend: str, rules: RetryRules | None) -> Callable[..., Any]:
    """Receivers that are plain functions run in the job's own thread, where they may use the ORM; the loop turns on."""

    async def run(job: JobContext, /, **arguments: Any) -> Any:
        async with _own_thread():
            attempt = TaskRun(task, backend, job, arguments, rules)
            try:
                await task_started.asend(attempt.sender, task_result=attempt.result)
                value = attempt.returned(await task.func(*attempt.args, **attempt.kwargs))
            except (Exception, SystemExit) as error:
                if attempt.failed(error):
                    await task_finished.asend_robust(attempt.sender, task_result=attempt.result)
                raise
            except asyncio.CancelledError:
                if attempt.given_up():
                    await task_finished.asend_robust(attempt.sender, task_result=attempt.result)
                raise
            attempt.succeeded()
            await task_finished.asend_robust(attempt.sender, task_result=attempt.result)
            return value

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
    """One attempt of a task and its result so far. It decides as the agent does whether the attempt is the last one."""

    def __init__(
        self, task: Task, backend: str, job: JobContext, arguments: Mapping[str, Any], rules: RetryRules | None
    ) -> None:
        self._job = job
        self._rules = rules
        note = TaskNote.read(job.metadata, backend)
        # The task with the priority and queue of this job; the function is that of the declared one.
        self.result: TaskResult = new_result(
            task_of(job.handler, note, job.lane), job.job_id_bytes, *call_of(task, arguments, note)
        )
        self.kwargs: dict[str, Any] = self.result.kwargs
        self.args: list[Any] = list(self.result.args)
        if task.takes_context:
            self.args.insert(0, TaskContext(task_result=self.result))
        self.sender = type(task_backends[self.result.backend])
        """Of the signals."""
        now = timezone.now()
        begun = {
            "status": TaskResultStatus.RUNNING,
            "enqueued_at": created_at(job.job_id_bytes),
            "started_at": now,
            "last_attempted_at": now,
            "worker_ids": [this_worker()] * job.attempt,
        }
        change(self.result, begun)

    def returned(self, value: Any) -> Any:
        """The return value as JSON values; ``TypeError`` when it is not of JSON's types."""
        change(self.result, {"_return_value": normalize_json(value)})
        return self.result._return_value

    def succeeded(self) -> bool:
        """The function has returned: the end."""
        return self._finished(TaskResultStatus.SUCCESSFUL)

    def failed(self, error: BaseException) -> bool:
        """The attempt has raised. True: it is the last one."""
        decision = decision_in(error)
        if isinstance(decision, Snooze):
            return False  # the attempt does not count
        self._note(error)
        if isinstance(decision, Retry):
            again = True
        elif decision is not None or isinstance(error, InvalidArguments):
            again = False
        else:
            again = self._tried_again(error)
        return False if again and not self._job.last_attempt else self._finished(TaskResultStatus.FAILED)

    def given_up(self) -> bool:
        """The agent has stopped the attempt, and what the function returns or raises is dropped. True: at its time-out, and
        it is the last one. A job that is given back runs again, and one that is cancelled has its outcome in the master."""
        change(self.result, {"_return_value": None})
        if self._job.remaining_seconds:
            return False
        error = TimeoutError("the task ran longer than its timeout")
        self._note(error)
        if not self._job.last_attempt and self._tried_again(error):
            return False
        return self._finished(TaskResultStatus.FAILED)

    def _tried_again(self, error: BaseException) -> bool:
        return self._job.last_attempt or self._rules is None or self._rules.decide(error, lambda: self._job).again

    def _note(self, error: BaseException) -> None:
        kind = type(error)
        text = "".join(traceback.format_exception(error))
        self.result.errors.append(
            TaskError(exception_class_path=f"{kind.__module__}.{kind.__qualname__}", traceback=text)
        )

    def _finished(self, status: TaskResultStatus) -> bool:
        change(self.result, {"status": status, "finished_at": timezone.now()})
        return True


def this_worker() -> str:
    """Host and process that run the attempt."""
    return f"{socket.gethostname()}:{os.getpid()}"
