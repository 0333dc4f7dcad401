"""System checks: options and configuration by ``manage.py check``, the master by ``manage.py check --database``."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.utils.module_loading import import_string

from jobmaster.django.options import BackendOptions, our_backends, read_options
from jobmaster.handlers import check_lane
from jobmaster.model.errors import ConfigError, InputError, JobMasterError
from jobmaster.wiring import open_master

OPTIONS_ID = "jobmaster.E001"
QUEUES_ID = "jobmaster.E002"
CONFIGURATION_ID = "jobmaster.E003"
MODULES_ID = "jobmaster.E004"
MASTER_ID = "jobmaster.W005"
TRANSACTION_ID = "jobmaster.W006"


def backend_findings(alias: str, params: Mapping[str, Any], queues: Collection[str]) -> Iterator[checks.CheckMessage]:
    """What is wrong with a backend's part of the project's settings; no server is asked."""
    for queue in sorted(queues):
        try:
            check_lane(queue)
        except InputError as error:
            yield checks.Error(f'TASKS["{alias}"]["QUEUES"]: {error.message}', hint=error.hint, id=QUEUES_ID)
    try:
        options = read_options(alias, params)
    except ImproperlyConfigured as error:
        yield checks.Error(str(error), id=OPTIONS_ID)
        return
    try:
        options.load()
    except ConfigError as error:
        for problem in error.problems or (error.message,):
            yield checks.Error(f'TASKS["{alias}"]: {problem}', hint=error.hint, id=CONFIGURATION_ID)
    for module in options.modules:
        yield from _importable(alias, module)


def _importable(alias: str, module: str) -> Iterator[checks.CheckMessage]:
    try:
        import_string(f"{module}.__name__")
    except ImportError as error:
        where = f'TASKS["{alias}"]["OPTIONS"]["modules"]'
        yield checks.Error(f"{where}: {module!r} cannot be imported: {error}", id=MODULES_ID)


def check_masters(databases: Sequence[str] | None = None, **_: Any) -> list[checks.CheckMessage]:
    """The master of each backend whose database is checked: it answers, and its schema is that of this program.

    Warnings, because ``migrate`` runs this check, too, and may come before ``jobmaster db migrate``.
    """
    found: list[checks.CheckMessage] = []
    for alias, params in our_backends().items():
        try:
            options = read_options(alias, params)
            if databases and options.database in databases:
                found.extend(_master_findings(alias, options))
        except (ImproperlyConfigured, ConfigError):
            pass  # `backend_findings` names it
    return found


def _master_findings(alias: str, options: BackendOptions) -> Iterator[checks.CheckMessage]:
    settings = options.load()

    async def look() -> None:
        master = await open_master(settings, application_name="jobmaster-check")
        await master.close()

    try:
        asyncio.run(look())
    except JobMasterError as error:
        yield checks.Warning(f'TASKS["{alias}"]: {error.message}', hint=error.hint, id=MASTER_ID)
        return
    if options.joins(settings) and not _has_submit(options.database, settings.schema_name()):
        yield checks.Warning(
            f'TASKS["{alias}"]: the database {options.database!r} has no function {settings.schema_name()}.submit',
            hint='if it is not the master, leave the option "transactional" out',
            id=TRANSACTION_ID,
        )


def _has_submit(database: str, schema: str) -> bool:
    """The function by which a job joins a transaction is in this database."""
    with connections[database].cursor() as cursor:
        cursor.callproc("to_regprocedure", [f'"{schema}".submit(text,jsonb,jsonb)'])
        return cursor.fetchone()[0] is not None
