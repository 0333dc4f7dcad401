"""The cluster that a data source reads or writes: found once, from the options, by the driver, and sent to every task.

``url`` or ``dsn`` (or ``dsnEnv``, the name of an environment variable) with ``cluster`` or ``schema``; or ``config``, a
configuration file; or none of them: the configuration that ``jobmaster`` itself would use (such as ``$JOBMASTER_CONFIG``).
``readUrl``, ``readDsn`` or ``readDsnEnv`` is the address for reading, such as that of a standby.

Spark shows the options of SQL statements in its UI and its event logs, and hides, in the session that a user opens without
further settings, those with ``url`` in their name. So an address with a password is taken from ``url`` and not from ``dsn``.

Every process of Spark that reads or writes imports this module, and Spark waits ten seconds for the one of a stream. So what
loads a configuration is imported only where there is one to load: with it come the clients of the store and YAML.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from jobmaster.master.driver.connection import ConnectionFactory
from jobmaster.model.errors import InputError
from jobmaster.settings.masking import mask_secrets
from jobmaster.settings.model import ClusterSettings, Limits, MasterSettings

APPLICATION_NAME = "jobmaster-spark"
PACING_NAME = "jobmaster-spark-pace"
"""Of the sessions that look at the load of the server while a task reads."""


class ClusterRef(NamedTuple):
    """What a task needs to connect to the master. Its ``repr`` contains no password."""

    dsn: str
    schema: str
    settings: MasterSettings
    limits: Limits
    lane: str
    priority: str
    lanes: frozenset[str]
    """Lanes of the agents in the configuration."""
    read_dsn: str | None = None
    """In place of ``dsn`` for reading."""

    def connection_factory(self) -> ConnectionFactory:
        """Opens connections to the master."""
        return ConnectionFactory(self.dsn, self.schema, self.settings, APPLICATION_NAME)

    def reading_factory(self) -> ConnectionFactory:
        """Opens connections that only read."""
        return ConnectionFactory(self.read_dsn or self.dsn, self.schema, self.settings, APPLICATION_NAME)

    def pacing_factory(self) -> ConnectionFactory:
        """Opens connections that look at the load of the server that is read."""
        return ConnectionFactory(self.read_dsn or self.dsn, self.schema, self.settings, PACING_NAME)

    def __repr__(self) -> str:
        return f"ClusterRef(schema={self.schema!r})"


class AddressOptions(NamedTuple):
    """Names of the options that give one address."""

    url: str
    dsn: str
    env: str


MASTER = AddressOptions("url", "dsn", "dsnEnv")
READING = AddressOptions("readUrl", "readDsn", "readDsnEnv")


def address_of(options: Mapping[str, str], names: AddressOptions = MASTER) -> str | None:
    """The address in option ``url`` or ``dsn``; ``None`` when neither is given.

    Raises:
        InputError: both are given, or ``dsn`` has a password, which Spark would show.
    """
    url, dsn = options.get(names.url), options.get(names.dsn)
    if url is not None and dsn is not None:
        raise InputError(f"the data source got both {names.url} and {names.dsn}", hint="give one of them")
    if dsn is not None and mask_secrets(dsn) != dsn:
        raise InputError(
            f"option {names.dsn} has a password, and Spark shows the options of statements in its UI and its event logs",
            hint=f"give {names.env}, the name of an environment variable, or the same text as option {names.url},"
            " which Spark hides",
        )
    return url if dsn is None else dsn


def cluster_ref_of(options: Mapping[str, str]) -> ClusterRef:
    """The cluster that the options name.

    Raises:
        InputError: the options contradict each other, or the environment variable is not set.
        ConfigError, Unavailable: as for every command.
    """
    read_dsn = _address(options, READING)
    dsn = _address(options, MASTER) or (read_dsn if options.get("config") is None else None)
    if dsn is not None and options.get("config") is None:
        settings = ClusterSettings()
    else:
        from jobmaster.settings.loader import load_settings

        path = options.get("config")
        settings = load_settings(Path(path) if path else None, os.environ, []).settings
    if cluster := options.get("cluster"):
        settings = msgspec.structs.replace(settings, cluster=cluster)
    schema = options.get("schema") or settings.schema_name()
    if not dsn:
        from jobmaster.server_addresses import master_address

        dsn = master_address(settings)
    return ClusterRef(
        dsn,
        schema,
        settings.master,
        settings.limits,
        settings.jobs.lane,
        settings.jobs.priority,
        frozenset(lane for agent in settings.agents.values() for lane in agent.bucket_counts()),
        read_dsn or settings.master.read_dsn,
    )


def _address(options: Mapping[str, str], names: AddressOptions) -> str | None:
    """The address in one of the options, or in the environment variable that one of them names."""
    dsn = address_of(options, names)
    if name := options.get(names.env):
        if dsn is not None:
            given = names.url if options.get(names.url) is not None else names.dsn
            raise InputError(f"the data source got both {given} and {names.env}", hint="give one of them")
        dsn = os.environ.get(name)
        if not dsn:
            raise InputError(
                f"option {names.env} names {name}, which is not set where the driver runs",
                hint=f"export {name}=postgresql://...",
            )
    return dsn
