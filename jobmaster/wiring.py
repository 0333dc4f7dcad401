"""The one place where concrete things are made from a configuration: master, stores, clusters.

A server without an address in the configuration is the embedded one of ``data_dir``; it must be running (``jobmaster dev``).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NamedTuple

from jobmaster.agentstore.store import AgentStore
from jobmaster.client.cluster import Cluster
from jobmaster.client.sync import SyncCluster
from jobmaster.embedded import ClusterStatus, read_status
from jobmaster.handlers import Handlers
from jobmaster.master.history.archive import Archive
from jobmaster.master.master import Master
from jobmaster.master.reports import Reader
from jobmaster.master.schema.migrate import drop, migrate
from jobmaster.master.transactions import MasterAccess, Transactions
from jobmaster.model.errors import ConfigError, Unavailable
from jobmaster.settings.model import ClusterSettings

OTHERS_SECONDS = 1.0
"""How long a start waits for stores that it can do without."""


class Addresses(NamedTuple):
    """Where the servers of a cluster are."""

    dsn: str
    urls: dict[str, str]
    """Store name -> URL."""


def data_directory(settings: ClusterSettings) -> Path:
    """The directory of the embedded servers."""
    return Path(settings.data_dir).expanduser()


def addresses(settings: ClusterSettings) -> Addresses:
    """The servers that the configuration names, the embedded ones in place of those it does not.

    Raises:
        Unavailable: an embedded server is meant and none is running.
        ConfigError: two stores would be the same embedded server.
    """
    unnamed = [name for name, store in settings.stores.items() if store.url is None]
    if len(unnamed) > 1:
        raise ConfigError(
            f"the stores {', '.join(unnamed)} have no url, but there is only one embedded store",
            hint=f"give stores.{unnamed[-1]}.url",
        )
    status = read_status(data_directory(settings)) if unnamed or settings.master.dsn is None else None
    dsn = settings.master.dsn or _embedded(status, "PostgreSQL", settings, "master.dsn")
    urls = {
        name: store.url or _embedded(status, "Valkey", settings, f"stores.{name}.url")
        for name, store in settings.stores.items()
    }
    return Addresses(dsn, urls)


def master_address(settings: ClusterSettings) -> str:
    """DSN of the master alone, for programs that never speak to a store.

    Raises:
        Unavailable: the embedded server is meant and none is running.
    """
    if settings.master.dsn is not None:
        return settings.master.dsn
    return _embedded(read_status(data_directory(settings)), "PostgreSQL", settings, "master.dsn")


def _embedded(status: ClusterStatus | None, name: str, settings: ClusterSettings, key: str) -> str:
    servers = (status.postgres, status.valkey) if status is not None else ()
    for server in servers:
        if server.name == name and server.running:
            return server.address
    raise Unavailable(
        f"no {name} server is running in {settings.data_dir}", hint=f"start `jobmaster dev`, or give {key}"
    )


async def open_master(settings: ClusterSettings, *, application_name: str) -> Master:
    """The master, connected; close it when done.

    Args:
        application_name: what the database's administrator sees; of an agent its id, by which a rescuer finds and ends
            the connections of a dead one.
    """
    return await Master.connect(
        dsn=addresses(settings).dsn,
        schema=settings.schema_name(),
        settings=settings.master,
        application_name=application_name,
    )


def open_transactions(settings: ClusterSettings, *, application_name: str) -> Transactions:
    """Connections for handlers' transactions on the master; each is opened when it is first needed. Close it when done."""
    return Transactions(
        MasterAccess(
            dsn=addresses(settings).dsn,
            schema=settings.schema_name(),
            application_name=application_name,
            settings=settings.master,
        )
    )


async def migrate_master(settings: ClusterSettings, progress: Callable[[str], None] = lambda _: None) -> list[str]:
    """Bring the master's schema up to this program and make the partitions of the next days; labels of what was new."""
    applied = await migrate(
        dsn=addresses(settings).dsn,
        schema=settings.schema_name(),
        cluster=settings.cluster,
        settings=settings.master,
        progress=progress,
    )
    master = await open_master(settings, application_name="jobmaster-migrate")
    try:
        await master.maintenance.ensure_partitions(settings.partitions.span, settings.partitions.ahead_days)
    finally:
        await master.close()
    return [migration.label for migration in applied]


async def drop_master(settings: ClusterSettings) -> None:
    """Drop the cluster's schema; for clusters to be thrown away."""
    await drop(
        dsn=addresses(settings).dsn,
        schema=settings.schema_name(),
        cluster=settings.cluster,
        settings=settings.master,
    )


async def open_reader(settings: ClusterSettings) -> Reader:
    """A read-only connection to the master for reports and audits; close it when done."""
    return await Reader.connect(
        dsn=addresses(settings).dsn,
        schema=settings.schema_name(),
        connect_timeout_seconds=settings.master.connect_timeout_seconds,
    )


async def open_archive(settings: ClusterSettings) -> Archive:
    """What retires ranges of the master; close it when done."""
    return await Archive.connect(dsn=addresses(settings).dsn, schema=settings.schema_name(), settings=settings.master)


async def open_stores(settings: ClusterSettings, *, needed: Collection[str] | None = None) -> dict[str, AgentStore]:
    """Every store of the configuration by name, connected; after a failure none stays open.

    Args:
        needed: stores that must answer now (``None``: all of them). The others have ``OTHERS_SECONDS``, all at the same time,
            and are connected when they are first used if they do not answer by then.
    """
    stores = {
        name: AgentStore(cluster=settings.cluster, name=name, url=url, settings=settings.stores[name])
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


async def open_cluster(settings: ClusterSettings, handlers: Handlers | None = None) -> Cluster:
    """A producer's cluster: submit, wait, look up, cancel.

    ::

        async with await open_cluster(load_settings().settings) as cluster:
            receipt = await cluster.submit("images.resize", {"path": "a.png"})
    """
    async with AsyncExitStack() as stack:
        master = await open_master(settings, application_name="jobmaster-client")
        stack.push_async_callback(master.close)
        stores = await open_stores(settings, needed=())
        for store in stores.values():
            stack.push_async_callback(store.close)
        return Cluster(settings, master, stores, handlers=handlers, on_close=stack.pop_all().aclose)
    raise AssertionError("an exit stack of closers swallows nothing")


def open_sync_cluster(settings: ClusterSettings, handlers: Handlers | None = None) -> SyncCluster:
    """The same for programs without an event loop; it runs one in a thread of its own.

    ::

        with open_sync_cluster(settings) as cluster:
            print(cluster.submit("images.resize", {"path": "a.png"}).result(timeout=30))
    """
    registry = handlers if handlers is not None else Handlers()
    return SyncCluster(lambda: open_cluster(settings, registry), handlers=registry)
