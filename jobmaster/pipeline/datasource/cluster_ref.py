"""The cluster that a data source reads or writes: found once, from the options, by the driver, and sent to every task.

``dsn`` (or ``dsnEnv``, the name of an environment variable) with ``cluster`` or ``schema``; or ``config``, a configuration
file; or none of them: the configuration that ``jobmaster`` itself would use (such as ``$JOBMASTER_CONFIG``).

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
from jobmaster.settings.model import ClusterSettings, Limits, MasterSettings

APPLICATION_NAME = "jobmaster-spark"


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

    def connection_factory(self) -> ConnectionFactory:
        """Opens connections to the master."""
        return ConnectionFactory(self.dsn, self.schema, self.settings, APPLICATION_NAME)

    def __repr__(self) -> str:
        return f"Place(schema={self.schema!r})"


def cluster_ref_of(options: Mapping[str, str]) -> ClusterRef:
    """The cluster that the options name.

    Raises:
        InputError: the options contradict each other, or the environment variable is not set.
        ConfigError, Unavailable: as for every command.
    """
    dsn = options.get("dsn")
    if name := options.get("dsnEnv"):
        if dsn is not None:
            raise InputError("the data source got both dsn and dsnEnv", hint="give one of them")
        dsn = os.environ.get(name)
        if not dsn:
            raise InputError(
                f"option dsnEnv names {name}, which is not set where the driver runs",
                hint=f"export {name}=postgresql://...",
            )
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
        from jobmaster.wiring import master_address

        dsn = master_address(settings)
    return ClusterRef(
        dsn,
        schema,
        settings.master,
        settings.limits,
        settings.jobs.lane,
        settings.jobs.priority,
        frozenset(lane for agent in settings.agents.values() for lane in agent.bucket_counts()),
    )
