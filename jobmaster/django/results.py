"""Jobs as the results of Django's tasks, and what a job's metadata keeps of a task for that."""

from __future__ import annotations

import builtins
import copy
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec
from django.utils.module_loading import import_string

from jobmaster.django.arguments import parameters_of, unbind
from jobmaster.django.interface import InvalidTask, Task, TaskError, TaskResult, TaskResultStatus
from jobmaster.model.ids import created_ms
from jobmaster.model.job import AttemptOutcome, ErrorInfo, JobState, Priority
from jobmaster.model.job_view import Attempt, JobView

METADATA_KEY = "django"
"""Key of a job's metadata under which ``TaskNote`` stands."""
_LEVEL_WIDTH = 40
_BUILTIN_ERRORS = frozenset(
    name for name, value in vars(builtins).items() if isinstance(value, type) and issubclass(value, BaseException)
)
_RAISED = frozenset({"error", "given_up", "failed", "retry"})
"""Reasons of errors that were raised inside the task."""
_COUNTED = frozenset({
    AttemptOutcome.FAILED, AttemptOutcome.TIMED_OUT, AttemptOutcome.UNCONFIRMED, JobState.SUCCEEDED, JobState.FAILED,
})  # fmt: skip
"""Outcomes of a run that used up an attempt."""
_STATUS = {
    JobState.PROCESSING: TaskResultStatus.RUNNING,
    JobState.WAITING: TaskResultStatus.RUNNING,
    JobState.SUCCEEDED: TaskResultStatus.SUCCESSFUL,
    JobState.FAILED: TaskResultStatus.FAILED,
    JobState.CANCELLED: TaskResultStatus.FAILED,
    JobState.EXPIRED: TaskResultStatus.FAILED,
}
"""The other states wait for a start: ``READY``."""


class TaskNote(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What the job's own fields do not show of the task."""

    backend: str
    positional: int = 0
    """Arguments that were given by position."""
    priority: int | None = 0
    """``None``: that of the task, because another program has submitted the job."""
    run_after: datetime | None = None

    def metadata(self) -> dict[str, str]:
        """The job's metadata."""
        return {METADATA_KEY: msgspec.json.encode(self).decode()}

    @classmethod
    def read(cls, metadata: Mapping[str, str], backend: str) -> TaskNote:
        """The note of a job; of a job that another program has submitted, one with this backend and the task's priority."""
        text = metadata.get(METADATA_KEY)
        try:
            return cls(backend=backend, priority=None) if text is None else msgspec.json.decode(text, type=cls)
        except msgspec.DecodeError:
            return cls(backend=backend, priority=None)


def level_of(priority: int) -> Priority:
    """The level of a task's priority: -100 to 100 in five equal parts, 0 is ``medium``."""
    return Priority(min(max((priority + 100) // _LEVEL_WIDTH, 0), 4) + 1)


def task_of(name: str, note: TaskNote, lane: str) -> Task:
    """The task whose job has the handler ``name``, with the options with which it was enqueued.

    They are not validated: the job exists, and its lane may be none of the backend's ``QUEUES``.

    Raises:
        InvalidTask: there is no such task in this project.
    """
    try:
        task = import_string(name)
    except (ImportError, ValueError) as error:
        raise InvalidTask(f"handler {name!r} cannot be imported as a task of this project: {error}") from error
    if not isinstance(task, Task):
        raise InvalidTask(f"handler {name!r} is no task of this project; it was submitted by another program")
    priority = task.priority if note.priority is None else note.priority
    changes = {"priority": priority, "queue_name": lane, "backend": note.backend, "run_after": note.run_after}
    if all(getattr(task, field) == value for field, value in changes.items()):
        return task
    enqueued = copy.copy(task)
    change(enqueued, changes)
    return enqueued


def call_of(task: Task, arguments: Mapping[str, Any], note: TaskNote) -> tuple[list[Any], dict[str, Any]]:
    """The arguments as they were given to ``enqueue``."""
    return unbind(parameters_of(task.func, task.takes_context), arguments, note.positional)


def created_at(job_id: bytes) -> datetime:
    """The time inside a job's id."""
    return datetime.fromtimestamp(created_ms(job_id) / 1000, UTC)


def new_result(task: Task, job_id: bytes, args: Sequence[Any], kwargs: Mapping[str, Any]) -> TaskResult:
    """Of a task that waits to be enqueued."""
    return TaskResult(
        task=task,
        id=str(UUID(bytes=job_id)),
        status=TaskResultStatus.READY,
        enqueued_at=None,
        started_at=None,
        finished_at=None,
        last_attempted_at=None,
        args=list(args),
        kwargs=dict(kwargs),
        backend=task.backend,
        errors=[],
        worker_ids=[],
    )


def change(frozen: TaskResult | Task, values: Mapping[str, Any]) -> None:
    """Set fields of a result or a task, which are frozen for their readers."""
    for name, value in values.items():
        object.__setattr__(frozen, name, value)


def result_of(view: JobView, history: Sequence[Attempt], backend: str) -> TaskResult:
    """A job and its history as the result of a task.

    Args:
        backend: alias of the backend that was asked; it stands in the result when the job names none.

    Raises:
        InvalidTask: the job is none of this project's tasks.
    """
    note = TaskNote.read(view.metadata, backend)
    task = task_of(view.handler, note, view.lane)
    result = new_result(task, view.id_bytes, *call_of(task, view.arguments, note))
    runs = [line for line in history if line.outcome in _COUNTED or (line.concluding and line.ran_us)]
    starts = [line.started_at for line in runs if line.started_at is not None]
    workers = [_worker(line) for line in runs]
    if view.state is JobState.PROCESSING and view.started_at is not None:
        starts.append(view.started_at)
        workers.append(_worker(view))
    seen = {
        "status": _STATUS.get(view.state, TaskResultStatus.READY),
        "enqueued_at": view.created_at,
        "started_at": starts[0] if starts else None,
        "last_attempted_at": starts[-1] if starts else None,
        "finished_at": view.ended_at,
        "errors": [task_error(line.error) for line in history if line.error is not None and not _was_put_off(line)],
        "worker_ids": workers,
        "_return_value": view.result_value,
    }
    change(result, seen)
    return result


def _was_put_off(line: Attempt) -> bool:
    """``Snooze`` is no failure."""
    return line.outcome == AttemptOutcome.SNOOZED


def _worker(run: Attempt | JobView) -> str:
    """The bucket and its epoch name one agent: `jobmaster bucket show` prints it."""
    return f"{UUID(bytes=run.bucket_id)}/{run.bucket_epoch}" if run.bucket_id is not None else "unknown"


def task_error(info: ErrorInfo) -> TaskError:
    """An error that was recorded.

    What the cluster itself has recorded (a time-out, a dead agent) is no exception of the task: its class is ``JobFailed``.
    """
    if info.type in _BUILTIN_ERRORS:
        path = f"builtins.{info.type}"
    elif info.reason in _RAISED and "." in info.type:
        path = info.type
    else:
        path = "jobmaster.JobFailed"
    return TaskError(exception_class_path=path, traceback=info.traceback or f"{info.type}: {info.message}\n")
