"""The servers of one test run: started for the first test that asks for them, stopped with the run."""

from __future__ import annotations

import secrets
import shutil
import tempfile
from pathlib import Path

import msgspec

from jobmaster.embedded import EmbeddedCluster
from jobmaster.embedded.cluster import EmbeddedOptions
from jobmaster.master.schema.renewal import keep_pristine, renew
from jobmaster.settings.model import ClusterSettings, Pooler
from jobmaster.wiring import migrate_master

_SCHEMA = "jobmaster_testing"
_LEASE_SECONDS, _RENEW_SECONDS = 3.0, 0.8
"""A dead agent's jobs are rescued soon."""


class TestServers:
    """PostgreSQL and Valkey in a scratch directory; tests kill processes and not the machine, so fsync is off."""

    __test__ = False

    def __init__(self) -> None:
        # Not pytest's own directory: its paths are too long for sockets.
        self.directory = Path(tempfile.mkdtemp(prefix="jobmaster-test-"))
        self._servers = EmbeddedCluster(self.directory / "servers", EmbeddedOptions(durable=False))
        self._migrated = False

    def start(self) -> None:
        """Start both.

        Raises:
            EmbeddedError: a server is not installed, or does not start.
        """
        self._servers.start()

    def stop(self) -> None:
        """Stop both, and remove what they have stored."""
        self._servers.stop()
        shutil.rmtree(self.directory, ignore_errors=True)

    async def fresh_cluster(self, settings: ClusterSettings) -> ClusterSettings:
        """These settings with the servers of the run, and with the id of a cluster that no other test has. The master is
        empty, and sessions of an earlier test are ended."""
        settings = self._settled(settings, f"test-{secrets.token_hex(6)}")
        if not self._migrated:
            await migrate_master(settings)
            await keep_pristine(dsn=self._servers.dsn, schema=_SCHEMA, settings=settings.master)
            self._migrated = True
        else:
            await renew(
                dsn=self._servers.dsn, schema=_SCHEMA, cluster=settings.cluster, settings=settings.master
            )  # fmt: skip
        return settings

    def _settled(self, settings: ClusterSettings, cluster: str) -> ClusterSettings:
        replace = msgspec.structs.replace
        leases = replace(
            settings.leases, lease_seconds=_LEASE_SECONDS, renew_seconds=_RENEW_SECONDS, grace_seconds=10.0
        )  # fmt: skip
        # Ports are for machines that other programs scrape; agents cannot work through a pooler.
        agents = {kind: replace(agent, metrics_port=None) for kind, agent in settings.agents.items()}
        return replace(
            settings,
            agents=agents,
            observability=replace(settings.observability, metrics_port=None),
            cluster=cluster,
            data_dir=str(self.directory),
            master=replace(settings.master, dsn=self._servers.dsn, schema=_SCHEMA, pooler=Pooler.NONE),
            stores={name: replace(store, url=self._servers.url) for name, store in settings.stores.items()},
            leases=leases,
        )
