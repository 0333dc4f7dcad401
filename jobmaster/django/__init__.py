"""Django: a backend for ``django.tasks``, a project's tasks as handlers of agents, a command, checks, and an admin.

Install it with the extra ``django``. Nothing else in this library imports it.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jobmaster.django.backend import JobMasterBackend
    from jobmaster.django.execution import job_options

__all__ = ["JobMasterBackend", "job_options"]

_MODULE_OF = {"JobMasterBackend": "jobmaster.django.backend", "job_options": "jobmaster.django.execution"}


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULE_OF[name]), name)
