"""The options of a backend in the project's settings, and the cluster that they lead to.

::

    TASKS = {
        "default": {
            "BACKEND": "jobmaster.django.JobMasterBackend",
            "QUEUES": ["default", "mails"],
            "OPTIONS": {"config": BASE_DIR / "jobmaster.yaml"},
        }
    }
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from django.conf import settings as project
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string

from jobmaster.django.same_database import is_master
from jobmaster.model.job import REQUESTABLE
from jobmaster.model.suggestion import did_you_mean
from jobmaster.settings.loader import load_settings
from jobmaster.settings.model import ClusterSettings

BACKEND_VARIABLE = "DJANGO_JOBMASTER_BACKEND"
"""Environment variable with the alias of the backend whose cluster an agent serves; `manage.py jobmaster` sets it."""


class ClusterBackend:
    """Mark of this package's backends, by which the settings are searched for them."""


class BackendOptions(NamedTuple):
    """``OPTIONS`` of a backend, checked."""

    config: str | None = None
    """The configuration file. ``None``: the first of ``$JOBMASTER_CONFIG``, ``./jobmaster.yaml``, ``./cluster.yaml``."""
    overrides: tuple[str, ...] = ()
    """``key.path=value`` texts that come before the environment and the file."""
    database: str = "default"
    """Alias of the database whose transactions a task joins or waits for."""
    transactional: bool | None = None
    """The job's row joins the transaction of ``database``. ``None``: if that is the master's database."""
    durability: str | None = None
    """Of tasks that are enqueued outside a transaction; ``None``: the cluster's default."""
    modules: tuple[str, ...] = ()
    """Modules that declare tasks, beside the ``tasks`` modules of the installed apps."""
    admin: str | None = None
    """Alias of the database by which the admin reads the master. ``None``: ``database``, if that is the master's."""

    def load(self) -> ClusterSettings:
        """The settings of the cluster; ``InvalidSettings`` with every problem."""
        return load_settings(self.config, None, self.overrides).settings

    def joins(self, settings: ClusterSettings) -> bool:
        """True when a job's row joins the transaction of ``database``."""
        return is_master(self.database, settings) if self.transactional is None else self.transactional


def read_options(alias: str, params: Mapping[str, Any]) -> BackendOptions:
    """The options of the backend ``alias``.

    Raises:
        ImproperlyConfigured: an unknown option, or a value of the wrong kind.
    """
    given = params.get("OPTIONS", {})
    where = f'TASKS["{alias}"]["OPTIONS"]'
    if not isinstance(given, Mapping):
        raise ImproperlyConfigured(f"{where} must be a mapping, not {type(given).__name__}")
    for name in given:
        if name not in BackendOptions._fields:
            near = did_you_mean(str(name), BackendOptions._fields)
            hint = near or f"valid are {', '.join(BackendOptions._fields)}"
            raise ImproperlyConfigured(f"{where} has the unknown option {name!r}: {hint}")
    values = dict(given)
    for name in ("overrides", "modules"):
        if name in values:
            values[name] = _texts(values[name], f'{where}["{name}"]')
    if values.get("config") is not None:
        if not isinstance(values["config"], str | os.PathLike):
            raise ImproperlyConfigured(f'{where}["config"] must be a path, not {values["config"]!r}')
        values["config"] = os.fspath(values["config"])
    options = BackendOptions(**values)
    _check_values(options, where)
    return options


def _texts(value: object, where: str) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(one, str) for one in value):
        raise ImproperlyConfigured(f"{where} must be a list of texts, not {value!r}")
    return tuple(value)


def _check_values(options: BackendOptions, where: str) -> None:
    if options.transactional not in (True, False, None):
        raise ImproperlyConfigured(f'{where}["transactional"] must be True, False or None')
    if options.durability is not None and options.durability not in REQUESTABLE:
        valid = ", ".join(level.value for level in REQUESTABLE)
        raise ImproperlyConfigured(f'{where}["durability"] is {options.durability!r}; valid are {valid}')
    for name in ("database", "admin"):
        alias = getattr(options, name)
        if alias is not None and not isinstance(alias, str):
            raise ImproperlyConfigured(f'{where}["{name}"] must be an alias of DATABASES, not {alias!r}')
    if options.admin is not None and options.admin not in project.DATABASES:
        raise ImproperlyConfigured(f'{where}["admin"] is {options.admin!r}, which is no alias of DATABASES')
    if project.DATABASES and options.database not in project.DATABASES:
        raise ImproperlyConfigured(f'{where}["database"] is {options.database!r}, which is no alias of DATABASES')


def our_backends() -> dict[str, Mapping[str, Any]]:
    """Alias -> parameters of every backend of this package in the project's settings; no backend is made.

    Raises:
        ImproperlyConfigured: a backend's class cannot be imported.
    """
    found = {}
    for alias, params in getattr(project, "TASKS", {}).items():
        path = params.get("BACKEND", "")
        try:
            made = import_string(path)
        except ImportError as error:
            raise ImproperlyConfigured(f'TASKS["{alias}"]["BACKEND"]: {path!r} cannot be imported: {error}') from error
        if isinstance(made, type) and issubclass(made, ClusterBackend):
            found[alias] = params
    return found


def chosen_backend(alias: str | None = None) -> tuple[str, BackendOptions]:
    """The backend of that alias; without one, the only backend, or the one named ``default``.

    Raises:
        ImproperlyConfigured: there is none, several are possible, or its options are wrong.
    """
    found = our_backends()
    if alias is None:
        alias = "default" if "default" in found else next(iter(found)) if len(found) == 1 else None
    if alias is None and found:
        raise ImproperlyConfigured(f"several JobMaster backends are in TASKS: name one of {', '.join(found)}")
    if alias is None or alias not in found:
        raise ImproperlyConfigured(
            'TASKS has no JobMaster backend{}; write "BACKEND": "jobmaster.django.JobMasterBackend"'.format(
                f" {alias!r}" if alias else ""
            )
        )
    return alias, read_options(alias, found[alias])
