"""Django's tasks interface: that of Django 6.0 and newer, or of its backport ``django-tasks`` for earlier versions.

The other modules of this package take the names from here, so that they do not differ between the two.
"""

from __future__ import annotations

from importlib.util import find_spec

from jobmaster.distribution import install_command
from jobmaster.model.errors import ConfigError

if find_spec("django.tasks") is not None:
    from django.tasks import TaskContext, TaskResult, TaskResultStatus, task_backends
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.base import Task, TaskError
    from django.tasks.exceptions import InvalidTask, TaskResultDoesNotExist
    from django.tasks.signals import task_enqueued, task_finished, task_started
    from django.utils.json import normalize_json
elif find_spec("django_tasks") is not None:
    from django_tasks import TaskContext, TaskResult, TaskResultStatus, task_backends
    from django_tasks.backends.base import BaseTaskBackend
    from django_tasks.base import Task, TaskError
    from django_tasks.exceptions import InvalidTaskError as InvalidTask
    from django_tasks.exceptions import TaskResultDoesNotExist
    from django_tasks.signals import task_enqueued, task_finished, task_started
    from django_tasks.utils import normalize_json
else:
    raise ConfigError(
        "this Django has no django.tasks, and its backport is not installed",
        hint=f"use Django 6.0 or newer, or the backport: {install_command('django')}",
    )

__all__ = [
    "BaseTaskBackend",
    "InvalidTask",
    "Task",
    "TaskContext",
    "TaskError",
    "TaskResult",
    "TaskResultDoesNotExist",
    "TaskResultStatus",
    "normalize_json",
    "task_backends",
    "task_enqueued",
    "task_finished",
    "task_started",
]
