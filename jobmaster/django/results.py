"""Jobs as the results of Django's tasks, and what a job's metadata keeps of a task for that."""

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec
from django.utils.module_loading import import_string

from jobmaster.django.arguments import parameters_of, unbind
from jobmaster.django.interface import InvalidTask, Task, TaskError, TaskResult, TaskResultStatus
from jobmaster.model.ids import created_ms
from jobmaster.model.job import ErrorInfo, JobState, Priority
from jobmaster.model.job_view import JobView

METADATA_KEY = "django"
"""Key of a job's metadata under which ``TaskNote`` stands."""
_LEVEL_WIDTH = 40
_BUILTIN_ERRORS = frozenset(
    name for name, value in vars(builtins).items() if isinstance(value, type) and issubclass(value, BaseException)
)
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
    priority: int = 0
    run_after: datetime | None = None

    def metadata(self) -> dict[str, str]:
        """The job's metadata."""
        return {METADATA_KEY: msgspec.json.encode(self).decode()}

    @classmethod
    def read(cls, metadata: Mapping[str, str], backend: str) -> TaskNote:
        """The note of a job; of a job that another program has submitted, one with defaults and this backend."""
        text = metadata.get(METADATA_KEY)
        try:
            return cls(backend=backend) if text is None else msgspec.json.decode(text, type=cls)
        except msgspec.DecodeError:
            return cls(backend=backend)


def level_of(priority: int) -> Priority:
    """The level of a task's priority: -100 to 100 in five equal parts, 0 is ``medium``."""
    return Priority(min(max((priority + 100) // _LEVEL_WIDTH, 0), 4) + 1)


def task_of(name: str, note: TaskNote, lane: str) -> Task:
    """The task whose job has the handler ``name``, with the options with which it was enqueued.

    Raises:
        InvalidTask: there is no such task in this project.
    """
    try:
        task = import_string(name)
    except (ImportError, ValueError) as error:
        raise InvalidTask(f"handler {name!r} cannot be imported as a task of this project: {error}") from error
    if not isinstance(task, Task):
        raise InvalidTask(f"handler {name!r} is no task of this project; it was submitted by another program")
    changes: dict[str, Any] = {"priority": note.priority, "queue_name": lane, "backend": note.backend}
    if all(getattr(task, field) == value for field, value in changes.items()) and note.run_after is None:
        return task
    return task.using(**changes, run_after=note.run_after)


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


def change(result: TaskResult, values: Mapping[str, Any]) -> None:
    """Set fields of a result, which is frozen for its readers."""
    for name, value in values.items():
        object.__setattr__(result, name, value)


def result_of(view: JobView, backend: str) -> TaskResult:
    """A job as the result of a task.

    Args:
        backend: alias of the backend that was asked; it stands in the result when the job names none.

    Raises:
        InvalidTask: the job is none of this project's tasks.
    """
    note = TaskNote.read(view.metadata, backend)
    task = task_of(view.handler, note, view.lane)
    result = new_result(task, view.id_bytes, *call_of(task, view.arguments, note))
    ended = view.changed_us if view.state.final else None
    started = view.changed_us if view.state is JobState.PROCESSING else None
    if ended is not None and view.ran_us is not None:
        started = ended - view.ran_us
    running = view.state is JobState.PROCESSING
    seen = {
        "status": _STATUS.get(view.state, TaskResultStatus.READY),
        "enqueued_at": created_at(view.id_bytes),
        "started_at": _moment(started),
        "last_attempted_at": _moment(started),
        "finished_at": _moment(ended),
        "errors": [] if view.error is None else [task_error(view.error)],
        "worker_ids": [_worker(view)] * (view.attempt + running),
        "_return_value": view.result_value,
    }
    change(result, seen)
    return result


def _moment(microseconds: int | None) -> datetime | None:
    return None if microseconds is None else datetime.fromtimestamp(microseconds / 1e6, UTC)


def _worker(view: JobView) -> str:
    """The bucket and its epoch name one agent: `jobmaster bucket show` prints it."""
    return f"{UUID(bytes=view.bucket_id)}/{view.bucket_epoch}" if view.bucket_id is not None else "unknown"


def task_error(info: ErrorInfo) -> TaskError:
    """An error that was recorded.

    What the cluster itself has recorded (a time-out, a dead agent) is no exception of the task: its class is ``JobFailed``.
    """
    if info.type in _BUILTIN_ERRORS:
        path = f"builtins.{info.type}"
    elif info.reason in ("error", "retry") and "." in info.type:
        path = info.type
    else:
        path = "jobmaster.JobFailed"
    return TaskError(exception_class_path=path, traceback=info.traceback or f"{info.type}: {info.message}\n")
