"""The tasks of a Django project as the handlers of an agent: ``jobmaster agent run --handlers jobmaster.django.handlers``.

Importing it sets Django up by ``$DJANGO_SETTINGS_MODULE`` and imports the ``tasks`` module of each installed app and the
modules of the backend's option ``modules``.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

import django
from django.apps import apps
from django.conf import ENVIRONMENT_VARIABLE
from django.conf import settings as project
from django.utils.module_loading import autodiscover_modules

from jobmaster.django.execution import add_handler
from jobmaster.django.interface import Task, task_backends
from jobmaster.django.options import BACKEND_VARIABLE, chosen_backend
from jobmaster.handlers import Handlers
from jobmaster.model.errors import ConfigError


def collect() -> Handlers:
    """Every task that the project declares, whatever its backend is: ``using(backend=...)`` may choose another.

    Raises:
        ConfigError: the project cannot be set up, or a task's options cannot work.
        ImproperlyConfigured: the project's settings are wrong.
    """
    if not project.configured and not os.environ.get(ENVIRONMENT_VARIABLE):
        raise ConfigError(
            f"${ENVIRONMENT_VARIABLE} is not set, so the project's settings are unknown",
            hint="start the agent with: python manage.py jobmaster agent run",
        )
    if not apps.ready:
        django.setup()
    alias, options = chosen_backend(os.environ.get(BACKEND_VARIABLE))
    autodiscover_modules("tasks")
    for module in options.modules:
        importlib.import_module(module)
    found = Handlers()
    for task in declared_tasks():
        add_handler(found, task, alias)
    return found


def declared_tasks() -> list[Task]:
    """The tasks of all imported modules under the names of their functions; one that ``using`` has changed is not another."""
    found: dict[str, Task] = {}
    # By type(): isinstance would evaluate lazy objects.
    kinds = {Task, *(type(backend).task_class for backend in task_backends.all())}
    for module in list(sys.modules.values()):
        values: list[Any] = list(getattr(module, "__dict__", {}).values())
        for value in values:
            if type(value) in kinds and _declared(value) is value:
                found[value.module_path] = value
    return [found[path] for path in sorted(found)]


def _declared(task: Task) -> Any:
    module = sys.modules.get(task.func.__module__)
    return getattr(module, task.func.__qualname__, None)


handlers = collect()
