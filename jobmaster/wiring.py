"""The one place where concrete things are made from a configuration: master, stores, clusters."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

from jobmaster.agentstore.store import AgentStore
from jobmaster.client.cluster import Cluster
from jobmaster.client.sync import SyncCluster
from jobmaster.handlers import Handlers
from jobmaster.master.history.archive import Archive
from jobmaster.master.master import Master
from jobmaster.master.reports import Reader
from jobmaster.master.schema.migrate import drop, migrate, status
from jobmaster.master.schema.migrations import MigrationStatus
from jobmaster.master.transactions import MasterAccess, Transactions
from jobmaster.model.errors import InputError, Unavailable
from jobmaster.passwords import NO_FUNCTIONS, PasswordFunction, PasswordFunctions, checked
from jobmaster.server_addresses import addresses, direct_dsn
from jobmaster.settings.model import ClusterSettings, Pooler
from jobmaster.settings.submit_rules import submit_rules
from jobmaster.tracing import open_tracing

log = logging.getLogger("jobmaster.settings")

OTHERS_SECONDS = 1.0
"""How long a start waits for stores that it can do without."""


async def open_master(
    settings: ClusterSettings,
    *,
    application_name: str,
    producer: bool = False,
    agent: bool = False,
    password: PasswordFunction | None = None,
    newer_schema: bool = False,
) -> Master:
    """The master, connected; close it when done.

    Args:
        application_name: what the database's administrator sees; of an agent its id, by which a rescuer finds and ends
            the connections of a dead one.
        producer: the program only submits and follows jobs, so its connections may go through a pooler.
        agent: the program runs jobs, with three connections (``master.agent_pool_size``).
        password: in place of ``master.password_command``.
        newer_schema: accept a schema that a newer program has made and that refuses this one.

    Raises:
        ConfigError: ``master.pooler`` names a pooler, and the program is no producer.
    """
    pooler = settings.master.pooler is Pooler.TRANSACTION
    return await Master.connect(
        dsn=addresses(settings).dsn if producer else direct_dsn(settings),
        schema=settings.schema_name(),
        settings=settings.master,
        application_name=application_name,
        agent=agent,
        pooler=pooler,
        password=password,
        newer_schema=newer_schema,
    )


def open_transactions(settings: ClusterSettings, *, application_name: str) -> Transactions:
    """Connections for handlers' transactions on the master; each is opened when it is first needed. Close it when done."""
    return Transactions(
        MasterAccess(
            dsn=direct_dsn(settings),
            schema=settings.schema_name(),
            application_name=application_name,
            settings=settings.master,
        )
    )


async def migrate_master(settings: ClusterSettings, progress: Callable[[str], None] = lambda _: None) -> list[str]:
    """Bring the master's schema up to this program and make the partitions of the next days; labels of what was new."""
    applied = await migrate(
        dsn=direct_dsn(settings),
        schema=settings.schema_name(),
        cluster=settings.cluster,
        settings=settings.master,
        progress=progress,
    )
    master = await open_master(settings, application_name="jobmaster-migrate")
    try:
        await master.maintenance.ensure_partitions(settings.partitions.span, settings.partitions.ahead_days)
        await master.members.publish_submit_rules(submit_rules(settings))
    finally:
        await master.close()
    return [migration.label for migration in applied]


async def schema_status(settings: ClusterSettings) -> list[MigrationStatus]:
    """State of every migration."""
    return await status(dsn=direct_dsn(settings), schema=settings.schema_name(), settings=settings.master)


async def drop_master(settings: ClusterSettings) -> None:
    """Drop the cluster's schema; for clusters to be thrown away."""
    await drop(
        dsn=direct_dsn(settings),
        schema=settings.schema_name(),
        cluster=settings.cluster,
        settings=settings.master,
    )


async def open_reader(settings: ClusterSettings) -> Reader:
    """A read-only connection to the master for reports and audits; close it when done."""
    return await Reader.connect(
        dsn=direct_dsn(settings),
        schema=settings.schema_name(),
        settings=settings.master,
    )


async def open_archive(settings: ClusterSettings) -> Archive:
    """What retires ranges of the master; close it when done."""
    return await Archive.connect(dsn=direct_dsn(settings), schema=settings.schema_name(), settings=settings.master)


async def open_stores(
    settings: ClusterSettings,
    *,
    needed: Collection[str] | None = None,
    passwords: Mapping[str, PasswordFunction] | None = None,
) -> dict[str, AgentStore]:
    """Every store of the configuration by name, connected; after a failure none stays open.

    Args:
        needed: stores that must answer now (``None``: all of them). The others have ``OTHERS_SECONDS``, all at the same time,
            and are connected when they are first used if they do not answer by then.
        passwords: by store, in place of its ``password_command``.
    """
    given = passwords or {}
    stores = {
        name: AgentStore(
            cluster=settings.cluster, name=name, url=url, settings=settings.stores[name], password=given.get(name)
        )
        for name, url in addresses(settings).urls.items()
    }
    opening = {name: asyncio.ensure_future(store.open()) for name, store in stores.items()}
    try:
        for name in stores if needed is None else needed:
            await opening[name]
        if others := opening.keys() - (stores if needed is None else needed):
            answered, _ = await asyncio.wait([opening[name] for name in others], timeout=OTHERS_SECONDS)
            for answer in answered:
                with contextlib.suppress(Unavailable):
                    answer.result()
    except BaseException:
        for store in stores.values():
            await store.close()
        raise
    finally:
        for attempt in opening.values():
            attempt.cancel()
        await asyncio.gather(*opening.values(), return_exceptions=True)
    return stores


class _NotOpenedError(InputError, AttributeError):
    """A use of a cluster that is not open. ``hasattr`` is False for what an ``Opening`` does not have."""


class Opening:
    """A cluster that is about to be opened: ``async with`` opens and closes it, ``await`` opens it and leaves the closing to
    the caller. Returned by ``connect``; usable once. Source of the idea: ``asyncpg.create_pool``.
    """

    def __init__(self, settings: ClusterSettings, handlers: Handlers | None, passwords: PasswordFunctions) -> None:
        self._settings = settings
        self._handlers = handlers
        self._passwords = passwords
        self._cluster: Cluster | None = None

    def __await__(self) -> Generator[Any, None, Cluster]:
        return open_cluster(self._settings, self._handlers, self._passwords).__await__()

    async def __aenter__(self) -> Cluster:
        if self._cluster is not None:
            raise InputError("this connect() is in use", hint="call jobmaster.connect() again for a second cluster")
        self._cluster = await self
        return self._cluster

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        cluster, self._cluster = self._cluster, None
        if cluster is not None:
            await cluster.close()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"'Opening' has no attribute {name!r}")
        raise _NotOpenedError(
            f"connect() has not been awaited, so it has no {name!r} yet",
            hint="write `async with jobmaster.connect() as cluster:`, or `cluster = await jobmaster.connect()`",
        )


def connect(
    config: str | Path | ClusterSettings | None = None,
    /,
    *,
    handlers: Handlers | None = None,
    env: Mapping[str, str] | None = None,
    overrides: Sequence[str] = (),
    passwords: PasswordFunctions = NO_FUNCTIONS,
) -> Opening:
    """A producer's connection to a cluster: submit, wait, look up, cancel.

    ::

        async with jobmaster.connect(handlers=handlers) as cluster:
            receipt = await cluster.submit(call(resize, "a.png", width=400))
            size = await receipt.result(timeout=30)

    Args:
        config: the configuration file, or settings that are loaded already. ``None`` looks for one as agents and the command
            line do: ``$JOBMASTER_CONFIG``, ``./jobmaster.yaml``, ``./cluster.yaml``.
        handlers: the registry of the handlers that this program submits; jobs of others are submitted by name.
        env: variables in place of those of the process; ``{}``: none.
        overrides: ``key.path=value`` texts; they come before the environment, which comes before the file.
        passwords: functions that return the present passwords of the servers, called when a connection is opened.

    Raises:
        InvalidSettings: (a ``ConfigError``) with every problem of the configuration.
        InputError: an argument of another type.
        Unavailable: (when it is opened) the master cannot be reached.
    """
    _check_handlers(handlers)
    return Opening(_settings(config, env, overrides), handlers, checked(passwords))


def connect_sync(
    config: str | Path | ClusterSettings | None = None,
    /,
    *,
    handlers: Handlers | None = None,
    env: Mapping[str, str] | None = None,
    overrides: Sequence[str] = (),
    passwords: PasswordFunctions = NO_FUNCTIONS,
) -> SyncCluster:
    """``connect`` for programs without an event loop. The configuration is read now; the connection is made by the first
    call, so a cluster may be made before a process forks and used after it.

    ::

        with jobmaster.connect_sync(handlers=handlers) as cluster:
            size = cluster.submit(call(resize, "a.png", width=400)).result(timeout=30)

    Raises:
        InvalidSettings: (a ``ConfigError``) with every problem of the configuration.
        InputError: an argument of another type.
    """
    _check_handlers(handlers)
    return open_sync_cluster(_settings(config, env, overrides), handlers, checked(passwords))


def _check_handlers(handlers: object) -> None:
    if handlers is not None and not isinstance(handlers, Handlers):
        raise InputError(
            f"handlers= takes a registry (jobmaster.Handlers), not {type(handlers).__name__}",
            hint="import it: `from tasks import handlers`; only the command line takes the name of a module",
        )


def _check_sources(env: object, overrides: object) -> None:
    if env is not None and not isinstance(env, Mapping):
        raise InputError(
            f"env= takes a mapping of variables, not {type(env).__name__}",
            hint="such as env={'JOBMASTER_CLUSTER': 'shop'}; env={} reads none",
        )
    if (
        isinstance(overrides, str)
        or not isinstance(overrides, Sequence)
        or not all(isinstance(text, str) for text in overrides)
    ):
        raise InputError(
            f"overrides= takes a list of texts, not {overrides!r}", hint="such as overrides=['cluster=shop']"
        )


def _settings(
    config: str | Path | ClusterSettings | None, env: Mapping[str, str] | None, overrides: Sequence[str]
) -> ClusterSettings:
    _check_sources(env, overrides)
    if isinstance(config, ClusterSettings):
        if env is not None or overrides:
            raise InputError(
                "'env' and 'overrides' change nothing in settings that are loaded already",
                hint="give the file's path, or change the settings before",
            )
        return config
    if config is not None and not isinstance(config, str | os.PathLike):
        raise InputError(
            f"the configuration is a file or ClusterSettings, not {type(config).__name__}",
            hint="the registry of handlers is named: connect(handlers=...)",
        )
    # Imported here: agents read no file, and the parser of YAML is a twentieth of what they load.
    from jobmaster.settings.loader import load_settings

    loaded = load_settings(config, env, overrides)
    for warning in loaded.warnings:
        log.warning("%s", warning)
    return loaded.settings


async def open_cluster(
    settings: ClusterSettings, handlers: Handlers | None = None, passwords: PasswordFunctions = NO_FUNCTIONS
) -> Cluster:
    """A producer's cluster: submit, wait, look up, cancel.

    Programs of users open it with ``connect``.
    """
    async with AsyncExitStack() as stack:
        program = f"{socket.gethostname()}-{os.getpid()}"
        tracing = open_tracing(settings.observability.traces, service="jobmaster-client", instance=program)
        if tracing is not None:
            stack.push_async_callback(tracing.close)
        master = await open_master(
            settings, application_name="jobmaster-client", producer=True, password=passwords.master
        )
        stack.push_async_callback(master.close)
        stores = await open_stores(settings, needed=(), passwords=passwords.stores)
        for store in stores.values():
            stack.push_async_callback(store.close)
        closing = stack.pop_all().aclose
        return Cluster(settings, master, stores, handlers=handlers, on_close=closing, traces=tracing)
    raise AssertionError("an exit stack of closers swallows nothing")


def open_sync_cluster(
    settings: ClusterSettings, handlers: Handlers | None = None, passwords: PasswordFunctions = NO_FUNCTIONS
) -> SyncCluster:
    """The same for programs without an event loop; it runs one in a thread of its own."""
    registry = handlers if handlers is not None else Handlers()
    return SyncCluster(lambda: open_cluster(settings, registry, passwords), handlers=registry)
