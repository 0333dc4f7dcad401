"""Where the servers of a cluster are: the addresses of the configuration, and those of the embedded servers.

A server without an address in the configuration is the embedded one of ``data_dir``; it must be running (``jobmaster dev``).
The module imports no driver of a database, so that a program that only checks a configuration starts quickly.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from jobmaster.model.errors import ConfigError, Unavailable
from jobmaster.settings.model import ClusterSettings, Pooler

if TYPE_CHECKING:
    from jobmaster.embedded import ClusterStatus


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
    status = _embedded_status(settings) if unnamed or settings.master.dsn is None else None
    dsn = settings.master.dsn or _embedded(status, "PostgreSQL", settings, "master.dsn")
    urls = {
        name: store.url or _embedded(status, "Valkey", settings, f"stores.{name}.url")
        for name, store in settings.stores.items()
    }
    return Addresses(dsn, urls)


def master_address(settings: ClusterSettings) -> str:
    """DSN of the master alone, for programs that never speak to a store and read it for long.

    Raises:
        Unavailable: the embedded server is meant and none is running.
        ConfigError: ``master.pooler`` names a pooler, to which the DSN leads.
    """
    _refuse_pooler(settings)
    if settings.master.dsn is not None:
        return settings.master.dsn
    return _embedded(_embedded_status(settings), "PostgreSQL", settings, "master.dsn")


def _embedded_status(settings: ClusterSettings) -> ClusterStatus:
    # Imported here: it needs modules that Windows does not have, where producers run too.
    try:
        from jobmaster.embedded import read_status
    except ModuleNotFoundError as error:
        raise Unavailable(
            f"the embedded servers do not run on this system (there is no module {error.name!r})",
            hint="give master.dsn, and the url of each of the stores",
        ) from None
    return read_status(data_directory(settings))


def _embedded(status: ClusterStatus | None, name: str, settings: ClusterSettings, key: str) -> str:
    servers = (status.postgres, status.valkey) if status is not None else ()
    for server in servers:
        if server.name == name and server.running:
            return server.address
    raise Unavailable(
        f"no {name} server is running in {settings.data_dir}", hint=f"start `jobmaster dev`, or give {key}"
    )


def direct_dsn(settings: ClusterSettings) -> str:
    """DSN of the master for programs that need sessions of PostgreSQL itself: locks, long reads, a name by which a session
    can be ended.

    Raises:
        ConfigError: ``master.pooler`` names a pooler, to which the DSN leads.
    """
    _refuse_pooler(settings)
    return addresses(settings).dsn


def _refuse_pooler(settings: ClusterSettings) -> None:
    if settings.master.pooler is not Pooler.NONE:
        raise ConfigError(
            f"master.pooler is {settings.master.pooler.value!r}: only producers can work through a pooler, agents and this "
            "command need sessions of PostgreSQL itself",
            hint="run them with master.pooler: none and a master.dsn of PostgreSQL itself, such as "
            "JOBMASTER_MASTER__POOLER=none JOBMASTER_MASTER__DSN=postgresql://...",
        )
