"""The backend of ``django.tasks`` that hands tasks to a JobMaster cluster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any
from uuid import UUID

from django.core.checks import CheckMessage
from django.db import connections, transaction
from django.utils import timezone

from jobmaster.client.options import FreshId
from jobmaster.clock import new_id
from jobmaster.django.arguments import bind, parameters_of
from jobmaster.django.checks import backend_findings
from jobmaster.django.execution import declare
from jobmaster.django.interface import (
    BaseTaskBackend,
    InvalidTask,
    Task,
    TaskResult,
    TaskResultDoesNotExist,
    normalize_json,
    task_enqueued,
)
from jobmaster.django.open_clusters import OPEN, OpenCluster
from jobmaster.django.options import BackendOptions, ClusterBackend, read_options
from jobmaster.django.results import TaskNote, change, level_of, new_result, result_of
from jobmaster.handlers import check_lane
from jobmaster.model.errors import InputError, JobMasterError, NotFound, OutcomeUnknown, WaitTimeout
from jobmaster.model.ids import created_ms

FRESH_SECONDS = 10.0
"""Age up to which a job without a row may be in an agent's hands: a look-up then waits for its row."""


class JobMasterBackend(ClusterBackend, BaseTaskBackend):
    """Tasks as jobs of a cluster: ``"BACKEND": "jobmaster.django.JobMasterBackend"``.

    ``queue_name`` is the lane, ``priority`` one of the five levels, ``run_after`` the due time, and the id of the result
    is that of the job. Inside a transaction of the project's database a task is enqueued with its commit: as a row of the
    transaction itself where that database is the cluster's master, else by ``transaction.on_commit``.
    """

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: Mapping[str, Any]) -> None:
        super().__init__(alias, dict(params))
        self._params = params

    @cached_property
    def job_options(self) -> BackendOptions:
        """``OPTIONS``, checked when they are first needed: a backend is made while a project is still being imported.

        Raises:
            ImproperlyConfigured: with the option and its place.
        """
        return read_options(self.alias, self._params)

    def cluster(self) -> OpenCluster:
        """The cluster of this process; its connections are opened by the first call.

        Raises:
            ImproperlyConfigured, InvalidSettings: the options or the cluster's configuration are wrong.
        """
        return OPEN.of(self.job_options)

    # ------------------------------------------------------------ enqueueing

    def validate_task(self, task: Task) -> None:
        """Raise ``InvalidTask`` for a task that the cluster cannot run."""
        super().validate_task(task)
        try:
            check_lane(task.queue_name)
        except InputError as error:
            raise InvalidTask(f"queue_name {task.queue_name!r} is the job's lane: {error}") from None
        if any(one.name == "ctx" for one in parameters_of(task.func, task.takes_context)):
            raise InvalidTask(
                f"{task.module_path}: the parameter 'ctx' needs another name; jobs use it for their context"
            )

    def enqueue(self, task: Task, args: Sequence[Any], kwargs: Mapping[str, Any]) -> TaskResult:
        """Hand in the task; its result is ``READY``.

        In a transaction whose database is not the master, the task is handed in after the commit; ``enqueued_at`` is ``None``
        until then.

        Raises:
            InvalidTask: the backend cannot run it. TypeError: the arguments do not fit the function, or are no JSON.
            OutcomeUnknown: an answer was lost, and sending the job once more gave none: it may be stored, under the id that
                the error names. Another call of ``enqueue`` makes another job.
            JobMasterError: the cluster refuses it or does not answer; nothing was stored.
        """
        self.validate_task(task)
        arguments = normalize_json(bind(task.func, task.takes_context, args, kwargs))
        job_id = new_id()
        result = new_result(task, job_id, normalize_json(list(args)), normalize_json(dict(kwargs)))
        cluster = self.cluster()
        declare(cluster, task, self.alias)
        submit = partial(self._submit, cluster, result, arguments, self._submit_options(task, job_id, len(args)))
        database = connections[self.job_options.database]
        if not database.in_atomic_block:
            submit()
        elif cluster.joins:
            submit(connection=database)
        else:
            transaction.on_commit(submit, using=self.job_options.database)
        return result

    def _submit_options(self, task: Task, job_id: bytes, positional: int) -> dict[str, Any]:
        run_after = task.run_after
        if run_after is not None and not timezone.is_aware(run_after):
            run_after = timezone.make_aware(run_after)
        note = TaskNote(positional=positional, priority=task.priority, backend=self.alias, run_after=task.run_after)
        options: dict[str, Any] = {
            "job_id": FreshId(job_id),
            "priority": level_of(task.priority),
            "lane": task.queue_name,
            "metadata": note.metadata(),
            "at": run_after,
        }
        return {name: value for name, value in options.items() if value}

    def _submit(
        self,
        cluster: OpenCluster,
        result: TaskResult,
        arguments: Mapping[str, Any],
        options: dict[str, Any],
        connection: Any = None,
    ) -> None:
        if connection is not None:
            options = {**options, "connection": connection}
        elif self.job_options.durability is not None:
            options = {**options, "durability": self.job_options.durability}
        name = result.task.module_path
        try:
            cluster.client.submit(name, arguments, **options)
        except OutcomeUnknown as lost:
            try:
                cluster.client.submit(name, arguments, **{**options, "job_id": bytes(options["job_id"])})
            except JobMasterError as error:
                raise lost from error  # the second one was not stored, the first one may be
        change(result, {"enqueued_at": timezone.now()})
        task_enqueued.send(type(self), task_result=result)

    # ------------------------------------------------------------ results

    def get_result(self, result_id: str) -> TaskResult:
        """The task of that id as it is now.

        Raises:
            TaskResultDoesNotExist: the cluster has no such job.
            InvalidTask: the job is none of this project's tasks.
        """
        try:
            job = UUID(str(result_id))
        except ValueError:
            raise TaskResultDoesNotExist(result_id) from None
        client = self.cluster().client
        try:
            view = client.get(job)
        except NotFound:
            view = self._once_saved(job)
        history = client.attempts(job)
        if not view.state.final and any(line.concluding for line in history):
            view = client.get(job)  # it has ended between the two reads
        return result_of(view, history, self.alias)

    def _once_saved(self, job: UUID) -> Any:
        """A young job that was just taken by an agent has neither an entry nor a row for ``persist_within``."""
        cluster = self.cluster()
        age_seconds = timezone.now().timestamp() - created_ms(job.bytes) / 1000
        try:
            if job.version != 7 or age_seconds > FRESH_SECONDS:
                raise TaskResultDoesNotExist(str(job))
            cluster.client.wait_saved(job, timeout=2 * cluster.settings.thresholds.persist_within_seconds)
            return cluster.client.get(job)
        except (NotFound, WaitTimeout):
            raise TaskResultDoesNotExist(str(job)) from None

    # ------------------------------------------------------------ checks

    def check(self, **kwargs: Any) -> Iterator[CheckMessage]:
        """What is wrong with the options and the cluster's configuration; no server is asked."""
        yield from super().check(**kwargs)
        yield from backend_findings(self.alias, self._params, self.queues)
