"""Django: a backend for ``django.tasks``, a project's tasks as handlers of agents, a command, checks, and an admin.

Install it with the extra ``django``. Nothing else in this library imports it.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

from jobmaster.distribution import install_command
from jobmaster.model.errors import ConfigError

if TYPE_CHECKING:
    from jobmaster.django.backend import JobMasterBackend
    from jobmaster.django.execution import job_options

__all__ = ["JobMasterBackend", "job_options"]

if find_spec("django") is None:
    raise ConfigError("jobmaster.django needs Django, which is not installed", hint=install_command("django"))

_MODULE_OF = {"JobMasterBackend": "jobmaster.django.backend", "job_options": "jobmaster.django.execution"}


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULE_OF[name]), name)
